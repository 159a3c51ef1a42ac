"""Does anything grow with the number of workers that were started and stopped?"""

from __future__ import annotations

import gc

from gguf_worker.protocol.messages import Output
from gguf_worker.supervision.spec import ShardSpec
from gguf_worker.supervision.supervisor import Supervisor
from gguf_worker.testing.baseline import Footprint
from gguf_worker.testing.faults import FAKE_MODEL
from gguf_worker.testing.figures.figure import Figure

WARM_UP = 30
"""Cycles before the first look: imports, caches and the allocator's arenas grow once."""
LOOKS = 10
"""Cycles of which the least resident memory counts: pieces of an allocator come and go."""
GROWTH_LIMIT_BYTES = 2 << 20
OBJECTS_LIMIT = 100
"""Python objects that may be there more; with more cycles than that, one for each cycle is too many."""


async def start_stop_cycles(cycles: int) -> Figure:
    """Starts a worker, computes, stops it; compares what this process holds before and after."""
    for _ in range(WARM_UP):
        await _cycle()
    resident_before = await _resident_bytes()
    before, objects_before = _look()
    incomplete = 0
    for _ in range(cycles):
        incomplete += not await _cycle()
    after, objects_after = _look()
    growth = await _resident_bytes() - resident_before
    problems = list(after.left_since(before))
    if incomplete:
        problems.append(f"{incomplete} releases were not complete")
    if growth > GROWTH_LIMIT_BYTES:
        problems.append(f"resident memory grew by {growth} bytes")
    if objects_after - objects_before >= max(cycles, OBJECTS_LIMIT):
        problems.append(f"{objects_after - objects_before} Python objects were kept")
    return Figure(
        name="start/stop cycles",
        promise="no growth in descriptors, threads, shared memory or children; resident memory flat",
        values={
            "cycles": cycles,
            "descriptors": f"{len(before.descriptors)} -> {len(after.descriptors)}",
            "threads": f"{len(before.threads)} -> {len(after.threads)}",
            "shared_memory": f"{len(before.shared_memory)} -> {len(after.shared_memory)}",
            "children": f"{len(before.children)} -> {len(after.children)}",
            "python_objects": f"{objects_before} -> {objects_after}",
            "resident_growth_bytes": growth,
        },
        problems=tuple(problems),
    )


def _look() -> tuple[Footprint, int]:
    gc.collect()
    return Footprint.now(), len(gc.get_objects())


async def _resident_bytes() -> int:
    """The least that was seen over some cycles."""
    seen = []
    for _ in range(LOOKS):
        await _cycle()
        gc.collect()
        seen.append(Footprint.now().resident_bytes)
    return min(seen)


async def _cycle() -> bool:
    """One worker's life; whether all of it was released."""
    supervisor = Supervisor(ShardSpec(FAKE_MODEL, engine="fake"))
    async with supervisor as worker, await worker.open_session() as session:
        await session.forward(tokens=[2, 3], output=Output.TOKEN)
    return supervisor.release is not None and supervisor.release.complete
