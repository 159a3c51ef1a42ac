"""Who may generate now, who waits, and who is sent away: bounded, and in the order of arrival."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from gguf_worker.gateway.errors import ApiError
from gguf_worker.generation.deadline import before_deadline
from gguf_worker.work import Work

MOST_RETRY_S = 120
"""Nobody is told to wait longer before the next attempt."""
SMOOTHING = 0.2
"""Weight of the newest request in the mean time of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a request takes while it runs."""

    slots: int = 1
    """Generations at the same time."""
    cells: int = 0
    """Rows of KV that they may come to."""


@dataclass(slots=True, eq=False)
class _Waiting:
    need: Need
    admitted: anyio.Event = field(default_factory=anyio.Event)


class Admission:
    """Slots and KV cells of one model. A request that does not fit now waits, and none behind it is served
    before it; where too many wait, it is refused with 429."""

    def __init__(
        self, *, slots: int, cells: int, queue: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.slots = slots
        self.cells = cells
        self.queue = queue
        """Most requests that wait."""
        self.refused = 0
        """Requests that found the queue full."""
        self._clock = clock
        self._slots_left = slots
        self._cells_left = cells
        self._waiting: deque[_Waiting] = deque()
        self._mean_s: float | None = None

    @property
    def active(self) -> int:
        """Slots in use."""
        return self.slots - self._slots_left

    @property
    def cells_used(self) -> int:
        """Cells that were promised."""
        return self.cells - self._cells_left

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def check_queue(self) -> None:
        """Raises ApiError, 429, where a request that came now could not even wait: it is not worth looking
        at."""
        is_full = len(self._waiting) >= self.queue
        if is_full and (self._waiting or not self._slots_left):
            raise self._refusal()

    @asynccontextmanager
    async def admitted(self, need: Need, work: Work | None = None) -> AsyncIterator[None]:
        """Waits for its turn, and holds what is needed while this is open. Raises ApiError, 429, and
        RequestTimeout where the deadline of the work passes before."""
        with before_deadline(work):
            await self._enter(need)
        began = self._clock()
        try:
            yield
        finally:
            self._measure(self._clock() - began)
            self._give_back(need)

    async def _enter(self, need: Need) -> None:
        if not self._waiting and self._fits(need):
            self._take(need)
            return
        if len(self._waiting) >= self.queue:
            raise self._refusal()
        waiting = _Waiting(need)
        self._waiting.append(waiting)
        try:
            await waiting.admitted.wait()
        except BaseException:
            if waiting.admitted.is_set():
                self._give_back(need)
            else:
                self._waiting.remove(waiting)
                self._admit()  # it may have been the one that held up the rest
            raise

    def _fits(self, need: Need) -> bool:
        return need.slots <= self._slots_left and need.cells <= self._cells_left

    def _take(self, need: Need) -> None:
        self._slots_left -= need.slots
        self._cells_left -= need.cells

    def _give_back(self, need: Need) -> None:
        self._slots_left += need.slots
        self._cells_left += need.cells
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0].need):
            waiting = self._waiting.popleft()
            self._take(waiting.need)
            waiting.admitted.set()

    def _measure(self, took_s: float) -> None:
        mean_s = took_s if self._mean_s is None else self._mean_s
        self._mean_s = mean_s + SMOOTHING * (took_s - mean_s)

    def _refusal(self) -> ApiError:
        self.refused += 1
        wait_s = retry_after_s(self.waiting, self.slots, self._mean_s)
        return ApiError(
            f"{self.active} generations run and {self.waiting} requests wait, which is as many as may; "
            f"try again in {wait_s} s",
            status=429,
            kind="rate_limit_error",
            code="queue_full",
            retry_after_s=wait_s,
        )


def retry_after_s(waiting: int, slots: int, mean_s: float | None) -> int:
    """When it is worth another attempt: once half of those who wait have begun. `mean_s` is what a request
    took of late; None where nobody knows."""
    if mean_s is None:
        return 1
    return min(MOST_RETRY_S, max(1, math.ceil(mean_s * (1 + waiting / 2) / slots)))
