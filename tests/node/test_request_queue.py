"""What queues of a node may hold together."""

from __future__ import annotations

import anyio
import pytest

from gguf_worker.node.request_queue import ByteBudget, Request, RequestQueue
from gguf_worker_v1 import stage_pb2

pytestmark = pytest.mark.anyio


def request(n_bytes: int) -> Request:
    return Request(frame=stage_pb2.StageFrame(), n_bytes=n_bytes, arrived=0.0)


async def test_queue_waits_for_the_bytes_of_another_one() -> None:
    """Each has its first request at once; for more they wait, those first who came first."""
    budget = ByteBudget(100)
    full, second, third = (RequestQueue(max_frames=9, max_bytes=1000, budget=budget) for _ in range(3))
    done: list[str] = []

    async def put(name: str, queue: RequestQueue) -> None:
        await queue.put(request(30))
        done.append(name)

    await full.put(request(100))
    await second.put(request(10))
    await third.put(request(10))
    async with anyio.create_task_group() as tasks:
        for name, queue in (("second", second), ("third", third)):
            tasks.start_soon(put, name, queue)
            await anyio.wait_all_tasks_blocked()
        assert done == []
        await full.get()
        await anyio.wait_all_tasks_blocked()
    assert done == ["second", "third"]
    assert not budget.has(21)
    second.clear()
    third.clear()
    assert budget.has(100)


async def test_one_that_stops_waiting_is_not_told() -> None:
    budget = ByteBudget(10)
    full, other = (RequestQueue(max_frames=9, max_bytes=1000, budget=budget) for _ in range(2))
    await full.put(request(10))
    await other.put(request(1))
    with anyio.move_on_after(0.01) as scope:
        await other.put(request(5))
    assert scope.cancelled_caught
    await full.get()
    with anyio.fail_after(5):
        await other.put(request(5))
