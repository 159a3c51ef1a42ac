"""What loading a shard adds to the resident memory of its worker."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from chain import specs
from gguf_worker import Route, estimate

pytestmark = pytest.mark.anyio

PROMISE = 1.10


def _resident_bytes(pid: int) -> int:
    """Resident memory as the kernel counts it (proc(5), statm, second field in pages)."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


STAGES = ("first", "middle", "last")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/<pid>/statm")
async def test_smollm2_workers_stay_within_their_memory(
    smollm2_path: Path, real_cache: Path, note: Callable[[str], None]
) -> None:
    """From before its load to ready, each worker of three gains at most 1.10 times what it owns: tensors, KV
    and compute buffers. Those are what was estimated before any was taken."""
    shards = specs(smollm2_path, 30, (10, 20), real_cache)
    admitted = [(await estimate(shard)).total_bytes for shard in shards]
    async with Route.start(shards) as route:
        for stage, worker, estimated in zip(STAGES, route.workers, admitted, strict=True):
            ready = _resident_bytes(worker.pid)
            before = (await worker.health()).rss_before_load_bytes
            parts = worker.ownership.bytes, worker.memory.kv_bytes, worker.memory.compute_bytes
            gained, owned = ready - before, sum(parts)
            note(
                f"resident memory of the {stage} worker: base {before / 1e6:.1f} MB, gained "
                f"{gained / 1e6:.1f} MB = {gained / owned:.3f} x {owned / 1e6:.1f} MB (tensors "
                f"{parts[0] / 1e6:.1f}, KV {parts[1] / 1e6:.1f}, compute {parts[2] / 1e6:.1f}); "
                f"admitted {estimated / 1e6:.1f} MB, loaded {worker.memory.total_bytes / 1e6:.1f} MB"
            )
            assert 0 < before < ready
            assert gained <= PROMISE * owned
            assert abs(estimated - worker.memory.total_bytes) <= 0.1 * worker.memory.total_bytes
