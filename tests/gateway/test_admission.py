"""Admission: bounded, in order, and nobody who left keeps a place."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from gguf_worker.errors import RequestTimeout
from gguf_worker.gateway.admission import Admission, Need, retry_after_s
from gguf_worker.gateway.errors import ApiError
from gguf_worker.work import Work

pytestmark = pytest.mark.anyio


async def settled() -> None:
    """Lets every task go as far as it can."""
    for _ in range(5):
        await anyio.lowlevel.checkpoint()


class Guest:
    """A request that stays until it is let go."""

    def __init__(self, admission: Admission, need: Need) -> None:
        self.is_in = False
        self.leave = anyio.Event()
        self.scope = anyio.CancelScope()
        self._admission, self._need = admission, need

    async def visit(self) -> None:
        with self.scope:
            async with self._admission.admitted(self._need):
                self.is_in = True
                await self.leave.wait()
        self.is_in = False


async def test_requests_are_served_in_the_order_of_arrival() -> None:
    """A small one does not overtake a large one that waits for room."""
    admission = Admission(slots=4, cells=100, queue=8)
    needs = [Need(cells=80), Need(cells=60), Need(cells=10)]
    guests = [Guest(admission, need) for need in needs]
    async with anyio.create_task_group() as tasks:
        for guest in guests:
            tasks.start_soon(guest.visit)
            await settled()
        assert [guest.is_in for guest in guests] == [True, False, False]
        guests[0].leave.set()
        await settled()
        assert [guest.is_in for guest in guests] == [False, True, True]
        for guest in guests:
            guest.leave.set()
    assert (admission.active, admission.cells_used, admission.waiting) == (0, 0, 0)


async def test_one_that_leaves_the_queue_holds_up_nobody() -> None:
    """Not even when it was the large one at its head."""
    admission = Admission(slots=4, cells=100, queue=8)
    first, large, small = (Guest(admission, Need(cells=cells)) for cells in (80, 60, 10))
    async with anyio.create_task_group() as tasks:
        for guest in (first, large, small):
            tasks.start_soon(guest.visit)
            await settled()
        large.scope.cancel()
        await settled()
        assert (first.is_in, small.is_in, admission.waiting) == (True, True, 0)
        tasks.cancel_scope.cancel()
    assert (admission.active, admission.cells_used) == (0, 0)


async def test_full_queue_refuses_at_once() -> None:
    """With 429 and when to try again."""
    admission = Admission(slots=1, cells=10, queue=1)
    async with anyio.create_task_group() as tasks:
        for guest in [Guest(admission, Need()) for _ in range(2)]:
            tasks.start_soon(guest.visit)
        await settled()
        with pytest.raises(ApiError) as caught:
            async with admission.admitted(Need()):
                pytest.fail("the queue is full")
        assert caught.value.status == 429
        assert caught.value.headers()["retry-after"] == "1"
        assert admission.refused == 1
        tasks.cancel_scope.cancel()


async def test_deadline_ends_the_wait() -> None:
    admission = Admission(slots=1, cells=10, queue=1)
    async with admission.admitted(Need()):
        with pytest.raises(RequestTimeout) as caught:
            async with admission.admitted(Need(), Work(deadline=0.0)):
                pytest.fail("there is no room")
        assert caught.value.code == "deadline"
    assert admission.waiting == 0


def test_retry_after_follows_what_requests_take() -> None:
    assert retry_after_s(10, 4, None) == 1
    assert retry_after_s(0, 4, 2.0) == 1
    assert retry_after_s(64, 4, 10.0) == 83
    assert retry_after_s(1000, 1, 100.0) == 120
