"""One generation that ended: a line in the log, a span, and metrics."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache

from gguf_worker.generation.record import GenerationRecord, StageRecord
from gguf_worker.logs import log_event
from gguf_worker.telemetry.instruments import Instruments
from gguf_worker.telemetry.spans import GenerationSpan, begin_generation
from gguf_worker.work import Work

log = logging.getLogger(__name__)


def observe(
    record: GenerationRecord, span: GenerationSpan | None = None, *, instruments: Instruments | None = None
) -> None:
    """Tells of a generation. `span` is what `begin_generation` gave for it; where there was none, one is made
    with the times of the record. `instruments` are the process's own unless others are given."""
    if span is None:
        work = Work(request_id=record.request_id, work_id=record.work_id)
        span = begin_generation(work, started_at=record.started_at)
    span.end(record)
    (instruments or _of_process()).record(record)
    _log(record)


@cache
def _of_process() -> Instruments:
    return Instruments()


def _log(record: GenerationRecord) -> None:
    first = record.time_to_first_token_us
    ended = f"{record.finish_reason}: {record.error}" if record.error else record.finish_reason
    log_event(
        log,
        logging.WARNING if record.error else logging.INFO,
        "generation",
        f"{record.tokens} tokens from {record.prompt_tokens} in {record.total_us / 1e6:.3f} s ({ended}"
        + (f", {record.replays} replays)" if record.replays else ")"),
        request_id=record.request_id,
        work_id=record.work_id,
        prompt_tokens=record.prompt_tokens,
        tokens=record.tokens,
        first_token_ms=None if first is None else first / 1e3,
        token_ms=_mean_ms(record.token_us),
        total_ms=record.total_us / 1e3,
        finish_reason=record.finish_reason,
        error=record.error or None,
        replays=record.replays,
        stages=[_stage(stage) for stage in record.stages],
    )


def _stage(stage: StageRecord) -> dict[str, object]:
    """Its figures by forward, where that is what they mean."""
    forwards = max(1, stage.forwards)
    return {
        "stage": stage.label,
        "forwards": stage.forwards,
        "rows": stage.rows,
        "rows_replayed": stage.rows_replayed,
        "replays": stage.replays,
        "queue_ms": round(stage.queue_us / forwards / 1e3, 3),
        "compute_ms": round(stage.compute_us / forwards / 1e3, 3),
        "hop_ms": round(stage.hop_us / forwards / 1e3, 3),
        "batch": round(stage.batch_rows / forwards, 2),
        "bytes_out": stage.bytes_out,
        "bytes_in": stage.bytes_in,
    }


def _mean_ms(times_us: Sequence[int]) -> float | None:
    return round(sum(times_us) / len(times_us) / 1e3, 3) if times_us else None
