"""Spans: one for a generation, and below it one for each of its stages, on this side and on the node's.

They are OpenTelemetry's, with the names of its conventions for generative models where it has some. Without
an SDK nothing is recorded, and a caller's trace goes through to the stages all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from opentelemetry import context, trace
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import gguf_worker
from gguf_worker.generation.record import GenerationRecord, StageRecord
from gguf_worker.work import Work

PREFIX = "gguf_worker"

_HEADER = "traceparent"
_PROPAGATOR = TraceContextTextMapPropagator()


def tracer_of(provider: TracerProvider | None = None) -> Tracer:
    """This package's tracer; of the process's provider where none is given."""
    return trace.get_tracer(PREFIX, gguf_worker.__version__, provider)


@dataclass(slots=True)
class GenerationSpan:
    """A generation that goes on."""

    work: Work
    """The work, as the stages shall get it: below this span."""
    _span: Span
    _tracer: Tracer

    def end(self, record: GenerationRecord | None = None) -> None:
        """The generation is over; `record` says what it did."""
        end_ns = None
        if record is not None:
            end_ns = _ns(record.started_at) + 1000 * record.total_us if record.started_at else None
            self._span.set_attributes(_attributes_of(record))
            _set_outcome(self._span, record.error)
            for stage in record.stages:
                self._tell_stage(stage, record, end_ns)
        self._span.end(end_ns)

    def _tell_stage(self, stage: StageRecord, record: GenerationRecord, end_ns: int | None) -> None:
        """The stage's part, seen from here: its figures are sums over the whole generation."""
        span = self._tracer.start_span(
            f"stage {stage.label}",
            trace.set_span_in_context(self._span),
            SpanKind.CLIENT,
            {**_attributes_of_stage(stage), **_ids(self.work)},
            start_time=_ns(record.started_at) if record.started_at else None,
        )
        span.end(end_ns)


def begin_generation(
    work: Work,
    *,
    model: str = "",
    tracer: Tracer | None = None,
    attributes: Mapping[str, str | int | float] | None = None,
    started_at: float | None = None,
) -> GenerationSpan:
    """A span for a generation that begins now, or began at `started_at` (seconds since 1970), below what the
    work's own `traceparent` names. Its `end` must be called."""
    tracer = tracer or tracer_of()
    span = tracer.start_span(
        "generation",
        _context_of(work),
        SpanKind.INTERNAL,
        {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": PREFIX,
            **({"gen_ai.request.model": model} if model else {}),
            **_ids(work),
            **(attributes or {}),
        },
        start_time=_ns(started_at) if started_at else None,
    )
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(span))
    return GenerationSpan(replace(work, traceparent=carrier.get(_HEADER, work.traceparent)), span, tracer)


@dataclass(slots=True)
class StageSpan:
    """One session of one stage, on the node that serves it."""

    _span: Span

    def tell(self, **figures: str | int | float) -> None:
        """Figures of the session; a later one of the same name replaces it."""
        self._span.set_attributes({f"{PREFIX}.{name}": value for name, value in figures.items()})

    def fail(self, code: str) -> None:
        """The session ended with this error."""
        _set_outcome(self._span, code)


@contextmanager
def stage_span(
    work: Work, *, layers: tuple[int, int], node: str, tracer: Tracer | None = None
) -> Iterator[StageSpan]:
    """A span for a session of a work, below what the work's `traceparent` names; it ends with the block,
    whatever ends that."""
    start, end = layers
    span = (tracer or tracer_of()).start_span(
        f"stage {start}:{end}",
        _context_of(work),
        SpanKind.SERVER,
        {
            f"{PREFIX}.layers": f"{start}:{end}",
            f"{PREFIX}.node": node,
            f"{PREFIX}.attempt": work.attempt,
            **_ids(work),
        },
    )
    try:
        yield StageSpan(span)
    finally:
        span.end()


def _context_of(work: Work) -> context.Context:
    """What the work's caller is in; a `traceparent` that is none begins a trace of its own."""
    return _PROPAGATOR.extract({_HEADER: work.traceparent}, context.Context())


def _ids(work: Work) -> dict[str, str]:
    return {f"{PREFIX}.request_id": work.request_id, f"{PREFIX}.work_id": work.work_id}


def _attributes_of(record: GenerationRecord) -> dict[str, str | int | float | tuple[str, ...]]:
    attributes: dict[str, str | int | float | tuple[str, ...]] = {
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.tokens,
        "gen_ai.response.finish_reasons": (record.finish_reason,),
        f"{PREFIX}.replays": record.replays,
    }
    if record.time_to_first_token_us is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = record.time_to_first_token_us / 1e6
    return attributes


def _attributes_of_stage(stage: StageRecord) -> dict[str, str | int | float]:
    return {
        f"{PREFIX}.stage": stage.label,
        f"{PREFIX}.forwards": stage.forwards,
        f"{PREFIX}.rows": stage.rows,
        f"{PREFIX}.rows_replayed": stage.rows_replayed,
        f"{PREFIX}.replays": stage.replays,
        f"{PREFIX}.queue_us": stage.queue_us,
        f"{PREFIX}.compute_us": stage.compute_us,
        f"{PREFIX}.hop_us": stage.hop_us,
        f"{PREFIX}.batch_rows": stage.batch_rows,
        f"{PREFIX}.bytes_out": stage.bytes_out,
        f"{PREFIX}.bytes_in": stage.bytes_in,
    }


def _set_outcome(span: Span, code: str) -> None:
    if code:
        span.set_attribute("error.type", code)
        span.set_status(StatusCode.ERROR, code)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
