"""A generation that ended, as pages show it: no text, and sums where there are many figures."""

from __future__ import annotations

from gguf_worker.generation.record import GenerationRecord, StageRecord
from gguf_worker.logs import utc
from gguf_worker.telemetry.figures import layers_of

KEPT = 32
"""The last ones."""


def generation_shown(record: GenerationRecord, model: str) -> dict[str, object]:
    """For JSON."""
    return {
        "model": model,
        "request_id": record.request_id,
        "work_id": record.work_id,
        "time": utc(record.started_at),
        "prompt_tokens": record.prompt_tokens,
        "tokens": record.tokens,
        "first_token_us": record.time_to_first_token_us,
        "decode_us": sum(record.token_us),
        "total_us": record.total_us,
        "finish_reason": record.finish_reason,
        "error": record.error or None,
        "stages": [_stage(stage) for stage in record.stages],
    }


def _stage(stage: StageRecord) -> dict[str, object]:
    return {
        "label": stage.label,
        "layers": layers_of(stage),
        "forwards": stage.forwards,
        "rows": stage.rows,
        "rows_replayed": stage.rows_replayed,
        "queue_us": stage.queue_us,
        "compute_us": stage.compute_us,
        "hop_us": stage.hop_us,
        "replays": stage.replays,
        "replay_us": stage.replay_us,
    }
