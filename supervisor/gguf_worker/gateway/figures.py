"""Figures of the gateway for /metrics and the status, added up since it began."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gguf_worker.gateway.model import ServedModel
from gguf_worker.gateway.recent import KEPT, generation_shown
from gguf_worker.generation.record import GenerationRecord
from gguf_worker.status_page.ring import Ring
from gguf_worker.telemetry import RecordMetrics


class Figures:
    """Counts requests and generations."""

    def __init__(self) -> None:
        self._records = RecordMetrics()
        self._answers: Counter[tuple[str, int]] = Counter()
        self._running: dict[str, GenerationRecord] = {}
        self.recent: Ring[dict[str, object]] = Ring(KEPT)
        """The last generations that ended, as pages show them."""
        self.tokens = 0
        """Drawn by generations that ended."""
        self.prompt_tokens = 0

    @contextmanager
    def following(self, record: GenerationRecord, model: str) -> Iterator[None]:
        """Open for as long as a generation goes on; its record is whole at the end."""
        self._running[record.work_id] = record
        try:
            yield
        finally:
            del self._running[record.work_id]
            self._records.observe(record)
            self.tokens += record.tokens
            self.prompt_tokens += record.prompt_tokens
            self.recent.add(generation_shown(record, model))

    @property
    def drawn(self) -> int:
        """Tokens so far, with those of generations that go on."""
        return self.tokens + sum(record.tokens for record in self._running.values())

    def answered(self, path: str, status: int) -> None:
        """One request that was answered."""
        self._answers[path, status] += 1

    @property
    def requests(self) -> int:
        """All that were answered."""
        return self._answers.total()

    def status(self, models: Iterable[ServedModel]) -> dict[str, object]:
        """For JSON."""
        return {
            "requests": self.requests,
            "tokens": self.tokens,
            "prompt_tokens": self.prompt_tokens,
            "models": [_model(model) for model in models],
        }

    def collect(self, models: Iterable[ServedModel]) -> Iterator[Metric]:
        """For /metrics."""
        yield from self._records.collect()
        answers = CounterMetricFamily(
            "gguf_worker_gateway_requests", "Requests that were answered.", labels=["path", "status"]
        )
        for (path, status), count in sorted(self._answers.items()):
            answers.add_metric([path, str(status)], count)
        yield answers
        yield from _of_models(list(models))


def _model(model: ServedModel) -> dict[str, object]:
    admission = model.admission
    return {
        "id": model.name,
        "active": admission.active,
        "slots": admission.slots,
        "waiting": admission.waiting,
        "queue": admission.queue,
        "refused": admission.refused,
        "kv_cells_promised": admission.cells_used,
        "kv_cells": admission.cells,
    }


def _of_models(models: list[ServedModel]) -> Iterator[Metric]:
    gauges = [
        GaugeMetricFamily(name, help_text, labels=["model"])
        for name, help_text in (
            ("gguf_worker_gateway_active", "Generations that may run now."),
            ("gguf_worker_gateway_slots", "Generations that may run at the same time."),
            ("gguf_worker_gateway_waiting", "Requests that wait for their turn."),
            ("gguf_worker_gateway_kv_cells_promised", "KV cells that generations may come to."),
        )
    ]
    refused = CounterMetricFamily(
        "gguf_worker_gateway_refused", "Requests that found the queue full.", labels=["model"]
    )
    for model in models:
        admission = model.admission
        figures = (admission.active, admission.slots, admission.waiting, admission.cells_used)
        for gauge, figure in zip(gauges, figures, strict=True):
            gauge.add_metric([model.name], figure)
        refused.add_metric([model.name], admission.refused)
    yield from (*gauges, refused)
