"""Two runs of float32 values, compared bit for bit. No I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from gguf_worker._schema import Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How many logits were compared and how many of them differ in any bit."""

    compared: int = 0
    different: int = 0
    largest: float = 0.0
    """Largest absolute difference; infinite where a value that differs is not finite."""

    @property
    def is_exact(self) -> bool:
        """Something was compared and nothing differs."""
        return self.compared > 0 and self.different == 0

    def __add__(self, other: Comparison) -> Comparison:
        return Comparison(
            compared=self.compared + other.compared,
            different=self.different + other.different,
            largest=max(self.largest, other.largest),
        )

    def to_map(self) -> dict[str, object]:
        """For JSON, which has no infinity: a difference that is not finite is written as text."""
        largest = self.largest if math.isfinite(self.largest) else "infinite"
        return {"compared": self.compared, "different": self.different, "largest_difference": largest}

    @classmethod
    def from_map(cls, values: dict[str, object]) -> Self:
        """Raises KeyError, TypeError or ValueError where `values` is no comparison."""
        largest = values["largest_difference"]
        return cls(
            compared=_count(values["compared"]),
            different=_count(values["different"]),
            largest=math.inf if largest == "infinite" else float(str(largest)),
        )


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


def compare(expected: Buffer, actual: Buffer) -> Comparison:
    """Compares two blocks of float32 values as 32-bit patterns, so that NaN and negative zero count as well.

    Raises ValueError where they are not of the same length.
    """
    if len(expected) != len(actual):
        raise ValueError(f"{len(actual)} bytes where {len(expected)} were expected")
    count = len(expected) // 4
    if bytes(expected) == bytes(actual):
        return Comparison(compared=count)
    left, right = (memoryview(values).cast("B") for values in (expected, actual))
    places = [
        place
        for place, (one, other) in enumerate(zip(left.cast("I"), right.cast("I"), strict=True))
        if one != other
    ]
    one_floats, other_floats = left.cast("f"), right.cast("f")
    largest = max(_difference(one_floats[place], other_floats[place]) for place in places)
    return Comparison(compared=count, different=len(places), largest=largest)


def _difference(one: float, other: float) -> float:
    difference = abs(one - other)
    return difference if math.isfinite(difference) else math.inf
