"""What the readers of a tracker in this process look at, and wait at."""

from __future__ import annotations

from collections.abc import Mapping

import anyio

from gguf_worker._tasks import plain_task_group
from gguf_worker.node.clock import Clock
from gguf_worker.node.tracker.leases import Leases
from gguf_worker.node.tracker.tracker import View


class Board:
    """Leases that can be waited for: the reading half of every tracker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.leases = Leases(clock)
        self._news = anyio.Event()
        self._changes_told = 0

    def view(self) -> View:
        """What is known now."""
        return self.leases.view()

    def ages(self) -> Mapping[str, float]:
        """Seconds since the last publication of each node was seen."""
        return self.leases.ages()

    async def changed(self, view: View) -> View:
        """Returns the view when it is another one than `view`."""
        while (now := self.view()) is view:
            await self._wait(self._news)
        return now

    def announce(self) -> None:
        """Wakes whoever waits, where the leases say something else. A lease that is renewed wakes nobody."""
        if self._changes_told == self.leases.changes:
            return
        self._changes_told = self.leases.changes
        self._news.set()
        self._news = anyio.Event()

    async def _wait(self, news: anyio.Event) -> None:
        """For an announcement, or until a lease may have ended."""
        expiry = self.leases.next_look()
        if expiry is None:
            await news.wait()
            return
        async with plain_task_group() as tasks:

            async def expire() -> None:
                await self._clock.sleep_until(expiry)
                tasks.cancel_scope.cancel()

            tasks.start_soon(expire)
            await news.wait()
            tasks.cancel_scope.cancel()
