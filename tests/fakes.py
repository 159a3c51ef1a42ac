"""Specifications of the fake engine, and its arithmetic in Python to compare with."""

from __future__ import annotations

from typing import Any

from gguf_worker import RestartPolicy, ShardSpec, StopDeadlines, WorkerSettings

LAYERS = 12
MODEL = f"fake:layers={LAYERS},embd=8,vocab=256"

SETTINGS = WorkerSettings(
    hello_timeout_s=30.0,
    load_stall_timeout_s=30.0,
    compute_stall_timeout_s=30.0,
    request_timeout_s=30.0,
    control_timeout_s=30.0,
    restart=RestartPolicy.never(),
)
"""Deadlines that only a broken worker meets, and no restart: most tests are about one life."""

PROMPT = RestartPolicy(max_restarts=3, backoff_initial_s=0.01, backoff_max_s=0.05)
"""Restarts that no test has to wait for."""

IMPATIENT = StopDeadlines(request_s=0.2, eof_s=0.2, terminate_s=5.0, kill_s=10.0)
"""For workers that are known not to heed the first rungs."""


def spec(layers: tuple[int, int] = (0, 0), **changes: Any) -> ShardSpec:
    """A shard of the fake model."""
    return ShardSpec(MODEL, layers=layers, engine="fake", **changes)
