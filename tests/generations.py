"""A record of a generation, for what is made of records."""

from __future__ import annotations

from typing import Any

from gguf_worker.generation.record import GenerationRecord, StageRecord


def record(**changes: Any) -> GenerationRecord:
    """Three tokens from five, over two stages, one of which was lost once."""
    fields: dict[str, Any] = {
        "request_id": "request",
        "work_id": "work",
        "prompt_tokens": 5,
        "tokens": 3,
        "started_at": 1000.0,
        "time_to_first_token_us": 30_000,
        "token_us": [10_000, 20_000],
        "total_us": 500_000,
        "finish_reason": "stop",
        "stages": [
            StageRecord(
                label="layers 0:8 on node-a", forwards=3, rows=7, queue_us=300, compute_us=6000, hop_us=900
            ),
            StageRecord(
                label="layers 8:16",
                forwards=3,
                rows=14,
                rows_replayed=7,
                compute_us=9000,
                batch_rows=6,
                replays=1,
            ),
        ],
        **changes,
    }
    return GenerationRecord(**fields)
