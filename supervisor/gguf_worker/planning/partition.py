"""Cutting a row of pieces into consecutive parts of which the largest is as small as possible. Exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

Load = Callable[[int, int, int], float]
"""What pieces `[start, end)` weigh in part `index`: `load(index, start, end)`. It must not fall when pieces
are added."""

Join = Callable[[float, float], float]


def balanced(n_pieces: int, n_parts: int, load: Load, *, least: int = 1) -> list[tuple[int, int]]:
    """Pieces `[start, end)` of each part, in order; parts have at least `least` (0 or 1) pieces.

    The largest load is the smallest that can be. Among the divisions that have it, the sum of squares is the
    smallest, so that the others are even too; where that ties, later parts are the shorter ones.
    """
    largest, _ = _best(n_pieces, n_parts, load, max, least, limit=math.inf)
    _, bounds = _best(n_pieces, n_parts, load, _add_square, least, limit=largest)
    return list(pairwise(bounds))


def _add_square(total: float, one: float) -> float:
    return total + one * one


def _best(
    n_pieces: int, n_parts: int, load: Load, join: Join, least: int, limit: float
) -> tuple[float, list[int]]:
    """The least joined load of a division whose loads are at most `limit`, and the bounds of its parts.

    `totals[end]` is the least for the parts so far when they hold the first `end` pieces. A part is tried
    from its shortest to its longest, until it alone is more than what was found.
    """
    totals = [0, *[math.inf] * n_pieces]
    chosen: list[list[int]] = []
    for part in range(n_parts):
        row, starts = [math.inf] * (n_pieces + 1), [0] * (n_pieces + 1)
        for end in range(n_pieces + 1):
            for start in range(end - least, -1, -1):
                one = load(part, start, end)
                if one > limit or join(0, one) > row[end]:
                    break
                total = join(totals[start], one)
                if total < row[end]:
                    row[end], starts[end] = total, start
        totals = row
        chosen.append(starts)
    return totals[-1], _trace(chosen, n_pieces)


def _trace(chosen: Sequence[Sequence[int]], n_pieces: int) -> list[int]:
    """The bounds, followed from the last one back."""
    bounds = [n_pieces]
    for starts in reversed(chosen):
        bounds.append(starts[bounds[-1]])
    return bounds[::-1]
