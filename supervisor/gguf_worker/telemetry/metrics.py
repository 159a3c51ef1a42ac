"""Figures of generations for /metrics, in the formats of Prometheus and OpenMetrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Counter, Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gguf_worker.generation.record import GenerationRecord, StageRecord
from gguf_worker.telemetry.figures import FIRST_TOKEN_S, GENERATION_S, TOKEN_S, layers_of, seconds


class RecordMetrics(Collector):
    """Counts generations; register it with the registry of a page."""

    def __init__(self) -> None:
        self._first_token = _histogram(
            "gguf_worker_first_token_seconds",
            "From the begin of the prefill to the first token.",
            FIRST_TOKEN_S,
        )
        self._token = _histogram(
            "gguf_worker_token_seconds", "From one token of a generation to the next.", TOKEN_S
        )
        self._duration = _histogram("gguf_worker_generation_seconds", "Whole generations.", GENERATION_S)
        self._generations = _counter(
            "gguf_worker_generations", "Generations that ended, by finish reason.", "finish_reason"
        )
        self._prompt_tokens = _counter("gguf_worker_prompt_tokens", "Tokens of prompts.")
        self._tokens = _counter("gguf_worker_generated_tokens", "Tokens drawn for generations.")
        self._forwards = _counter("gguf_worker_stage_forwards", "Forwards of a stage of a route.", "layers")
        self._queue = _counter(
            "gguf_worker_stage_queue_seconds", "Spent by forwards waiting in the stage.", "layers"
        )
        self._compute = _counter(
            "gguf_worker_stage_compute_seconds", "Spent by forwards computing in the stage.", "layers"
        )
        self._hop = _counter(
            "gguf_worker_stage_hop_seconds", "Spent by forwards on the way to the stage and back.", "layers"
        )
        self._replays = _counter(
            "gguf_worker_stage_replays", "Times that the stage was lost and brought back.", "layers"
        )
        self._rows_replayed = _counter("gguf_worker_stage_rows_replayed", "Rows computed again.", "layers")

    def observe(self, record: GenerationRecord) -> None:
        """Adds one generation that ended."""
        if record.time_to_first_token_us is not None:
            self._first_token.observe(seconds(record.time_to_first_token_us))
        for token_us in record.token_us:
            self._token.observe(seconds(token_us))
        self._duration.observe(seconds(record.total_us))
        self._generations.labels(record.finish_reason).inc()
        self._prompt_tokens.inc(record.prompt_tokens)
        self._tokens.inc(record.tokens)
        for stage in record.stages:
            self._observe_stage(stage)

    def _observe_stage(self, stage: StageRecord) -> None:
        layers = layers_of(stage)
        self._forwards.labels(layers).inc(stage.forwards)
        self._queue.labels(layers).inc(seconds(stage.queue_us))
        self._compute.labels(layers).inc(seconds(stage.compute_us))
        self._hop.labels(layers).inc(seconds(stage.hop_us))
        self._replays.labels(layers).inc(stage.replays)
        self._rows_replayed.labels(layers).inc(stage.rows_replayed)

    def collect(self) -> Iterator[Metric]:
        """Everything that was counted so far."""
        for figure in vars(self).values():
            yield from figure.collect()


def _histogram(name: str, help_text: str, buckets: tuple[float, ...]) -> Histogram:
    return Histogram(name, help_text, buckets=buckets, registry=None)


def _counter(name: str, help_text: str, *labels: str) -> Counter:
    """Its samples are called `name_total`."""
    return Counter(name, help_text, labelnames=labels, registry=None)
