"""A promise, and what was measured of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the table."""

    name: str
    promise: str
    """What must hold, in words."""
    values: Mapping[str, float | int | str]
    """What was measured; the names of the values have their units."""
    problems: tuple[str, ...] = ()
    """Why the promise is not kept; empty where it is."""

    @property
    def is_kept(self) -> bool:
        return not self.problems


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def milliseconds(seconds: float) -> float:
    """Rounded to what can be read from a clock."""
    return round(seconds * 1e3, 2)
