"""Time, as the policies of a node see it; tests have a clock of their own."""

from __future__ import annotations

import time
from typing import Protocol

import anyio


class Clock(Protocol):
    """Seconds that only go forward."""

    def now(self) -> float:
        """The moment, of no meaning but beside others of this clock."""

    async def sleep_until(self, moment: float) -> None:
        """Returns at the moment, or at once where it has passed."""


class MonotonicClock:
    """`time.monotonic`, which deadlines of a `Work` are given by."""

    def now(self) -> float:
        return time.monotonic()

    async def sleep_until(self, moment: float) -> None:
        await anyio.sleep(max(0.0, moment - time.monotonic()))
