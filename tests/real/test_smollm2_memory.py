"""What loading a shard adds to the resident memory of its worker."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from chain import specs
from gguf_worker import Route

pytestmark = pytest.mark.anyio

PROMISE = 1.10


def _resident_bytes(pid: int) -> int:
    """Resident memory as the kernel counts it (proc(5), statm, second field in pages)."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/<pid>/statm")
async def test_smollm2_middle_worker_stays_within_its_memory(
    smollm2_path: Path, real_cache: Path, note: Callable[[str], None]
) -> None:
    """From before its load to ready, the middle worker of three gains at most 1.10 times what it owns:
    tensors, KV and compute buffers."""
    async with Route.start(specs(smollm2_path, 30, (10, 20), real_cache)) as route:
        worker = route.workers[1]
        ready = _resident_bytes(worker.pid)
        before = (await worker.health()).rss_before_load_bytes
        parts = worker.ownership.bytes, worker.memory.kv_bytes, worker.memory.compute_bytes
    gained, owned = ready - before, sum(parts)
    note(
        f"resident memory of the middle worker: base {before / 1e6:.1f} MB, gained {gained / 1e6:.1f} MB "
        f"= {gained / owned:.3f} x {owned / 1e6:.1f} MB "
        f"(tensors {parts[0] / 1e6:.1f}, KV {parts[1] / 1e6:.1f}, compute {parts[2] / 1e6:.1f})"
    )
    assert 0 < before < ready
    assert gained <= PROMISE * owned
