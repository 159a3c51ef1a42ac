"""A clock for policies that take one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import anyio


@dataclass
class ManualClock:
    """A clock that stands until somebody moves it."""

    moment: float = 1000.0
    _sleepers: list[tuple[float, anyio.Event]] = field(default_factory=list)
    _fell_asleep: anyio.Event = field(default_factory=anyio.Event)

    def now(self) -> float:
        return self.moment

    async def sleep_until(self, moment: float) -> None:
        while self.moment < moment:
            woken = anyio.Event()
            self._sleepers.append((moment, woken))
            self._fell_asleep.set()
            self._fell_asleep = anyio.Event()
            await woken.wait()

    def advance(self, seconds: float) -> None:
        """Moves it on, and wakes whoever slept until then."""
        self.moment += seconds
        due = [sleeper for sleeper in self._sleepers if sleeper[0] <= self.moment]
        self._sleepers = [sleeper for sleeper in self._sleepers if sleeper[0] > self.moment]
        for _, woken in due:
            woken.set()

    def next_wake(self) -> float:
        """The earliest moment that somebody sleeps until."""
        return min((moment for moment, _ in self._sleepers), default=math.inf)

    async def someone_sleeps_until(self, moment: float) -> None:
        """Returns when somebody does."""
        while moment not in [until for until, _ in self._sleepers]:
            await self._fell_asleep.wait()

    async def wait_for_sleeper(self) -> None:
        """Returns when somebody waits for a later moment."""
        while not self._sleepers:
            await self._fell_asleep.wait()
