"""The figures of /metrics, in the formats of Prometheus and OpenMetrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

import gguf_worker
from gguf_worker.serving.service import Phase, Service
from gguf_worker.serving.shard import Look
from gguf_worker.supervision.lifecycle import WorkerState


def exposition(service: Service, looks: Sequence[Look], accept: str) -> tuple[bytes, str]:
    """The page and its content type, in the best format that `accept` allows."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(_Figures(service, looks))
    for part in service.parts.values():
        registry.register(part)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Figures(Collector):
    """One look at the service. Counts go on over the lives of a worker."""

    def __init__(self, service: Service, looks: Sequence[Look]) -> None:
        self._service = service
        self._looks = looks

    def collect(self) -> Iterator[Metric]:
        yield self._build()
        yield self._phase()
        yield from self._lifecycles()
        yield from self._memory()
        yield from self._execution()
        yield from self._totals()

    def _build(self) -> Metric:
        return InfoMetricFamily(
            "gguf_worker_build", "This package.", value={"version": gguf_worker.__version__}
        )

    def _phase(self) -> Metric:
        family = GaugeMetricFamily(
            "gguf_worker_service_phase", "1 for the phase that the service is in.", labels=["phase"]
        )
        for phase in Phase:
            family.add_metric([phase.value], float(phase is self._service.phase))
        return family

    def _lifecycles(self) -> Iterator[Metric]:
        states = GaugeMetricFamily(
            "gguf_worker_state", "1 for the state that the worker is in.", labels=["layers", "state"]
        )
        shards = InfoMetricFamily("gguf_worker_shard", "What the worker attested to hold.", labels=["layers"])
        ready = _gauge("gguf_worker_ready", "1 where the worker takes requests, else 0.")
        restarts = _counter("gguf_worker_restarts", "Processes that took the place of one that died.")
        exits = CounterMetricFamily(
            "gguf_worker_exits", "Processes that ended, by cause.", labels=["layers", "cause"]
        )
        uptime = _gauge("gguf_worker_uptime_seconds", "Since the newest process was started.")
        load = _gauge("gguf_worker_load_seconds", "What the newest load took.")
        for look in self._looks:
            metrics, layers = look.metrics, [look.layers]
            for state in WorkerState:
                states.add_metric([look.layers, state.value], float(state is metrics.state))
            ready.add_metric(layers, float(metrics.state is WorkerState.READY))
            restarts.add_metric(layers, metrics.restarts)
            for cause, count in sorted(metrics.causes.items()):
                exits.add_metric([look.layers, cause], count)
            if metrics.identity is not None:
                identity = metrics.identity
                shards.add_metric(layers, {"artifact": identity.artifact, "shard": identity.shard or ""})
            if metrics.uptime_s is not None:
                uptime.add_metric(layers, metrics.uptime_s)
            if metrics.load_s is not None:
                load.add_metric(layers, metrics.load_s)
        yield from (states, shards, ready, restarts, exits, uptime, load)

    def _memory(self) -> Iterator[Metric]:
        parts = GaugeMetricFamily(
            "gguf_worker_memory_bytes", "What the loaded shard occupies, by kind.", labels=["layers", "kind"]
        )
        resident = _gauge("gguf_worker_resident_memory_bytes", "Resident memory of the worker's process.")
        for look in self._looks:
            memory, health = look.metrics.memory, look.metrics.health
            if memory is not None:
                for kind in ("weights", "kv", "compute"):
                    parts.add_metric([look.layers, kind], getattr(memory, f"{kind}_bytes"))
            if health is not None:
                resident.add_metric([look.layers], health.rss_bytes)
        yield from (parts, resident)

    def _execution(self) -> Iterator[Metric]:
        fresh = _gauge("gguf_worker_health_fresh", "1 where the worker answered for this page, else 0.")
        in_flight = _gauge("gguf_worker_requests_in_flight", "Requests that somebody waits for.")
        queued = _gauge("gguf_worker_requests_queued", "Requests that wait in the worker.")
        sessions = _gauge("gguf_worker_sessions", "Open sessions.")
        most_sessions = _gauge("gguf_worker_sessions_limit", "Sessions that can be open at once.")
        used = _gauge("gguf_worker_kv_cells_used", "KV cells that sessions take.")
        cells = _gauge("gguf_worker_kv_cells_limit", "KV cells of all sessions together.")
        for look in self._looks:
            metrics, layers = look.metrics, [look.layers]
            fresh.add_metric(layers, float(metrics.health_is_fresh))
            in_flight.add_metric(layers, metrics.in_flight)
            if metrics.health is not None:
                queued.add_metric(layers, metrics.health.queued)
                sessions.add_metric(layers, metrics.health.sessions)
                used.add_metric(layers, metrics.health.kv_cells_used)
            if metrics.capacity is not None:
                most_sessions.add_metric(layers, metrics.capacity.max_sessions)
                cells.add_metric(layers, metrics.capacity.kv_cells)
        yield from (fresh, in_flight, queued, sessions, most_sessions, used, cells)

    def _totals(self) -> Iterator[Metric]:
        requests = _counter("gguf_worker_requests", "Requests that were answered, with errors as well.")
        errors = _counter("gguf_worker_request_errors", "Requests that were answered with an error.")
        rows = _counter("gguf_worker_rows", "Rows computed: one per token that went through the shard.")
        tokens = _counter("gguf_worker_tokens_sampled", "Tokens drawn.")
        compute = _counter("gguf_worker_compute_seconds", "Time spent in steps.")
        stderr = _counter("gguf_worker_stderr_lines", "Lines that the worker wrote on stderr.")
        for look in self._looks:
            totals, layers = look.metrics.totals, [look.layers]
            requests.add_metric(layers, totals.requests)
            errors.add_metric(layers, totals.errors)
            rows.add_metric(layers, totals.rows)
            tokens.add_metric(layers, totals.tokens_sampled)
            compute.add_metric(layers, totals.compute_us / 1e6)
            stderr.add_metric(layers, look.metrics.stderr_lines)
        yield from (requests, errors, rows, tokens, compute, stderr)


def _gauge(name: str, help_text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help_text, labels=["layers"])


def _counter(name: str, help_text: str) -> CounterMetricFamily:
    """Its samples are called `name_total`."""
    return CounterMetricFamily(name, help_text, labels=["layers"])
