"""Counts that rise, as rates over time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A rate at a moment."""

    time: float
    """Seconds since 1970."""
    per_s: float

    def to_list(self) -> list[float]:
        """For JSON."""
        return [round(self.time, 2), round(self.per_s, 2)]


class Rates:
    """Makes one sample of each period; a look that comes too early waits for the next."""

    def __init__(self, period_s: float) -> None:
        self._shortest_s = period_s / 2
        self._before: tuple[float, int] | None = None

    def take(self, count: int, *, now: float, time: float) -> Sample | None:
        """`now` runs evenly; `time` is for people. A count that falls has begun anew."""
        if self._before is None:
            self._before = (now, count)
            return None
        then, counted = self._before
        if now - then < self._shortest_s:
            return None
        self._before = (now, count)
        return Sample(time=time, per_s=max(0, count - counted) / (now - then))
