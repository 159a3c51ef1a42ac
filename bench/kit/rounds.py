"""Sides in turns: a machine that slows down slows all of them."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping

Turn = Callable[[], Awaitable[float]]
"""Does it once, and gives the value."""


async def in_turns(sides: Mapping[str, Turn], *, rounds: int, warm_up: int = 1) -> dict[str, list[float]]:
    """Values of each side, one per round. Every other round goes the other way round, so that no side always
    follows the same one; the first `warm_up` rounds are thrown away."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(warm_up + rounds):
        names = list(sides)
        for name in names if number % 2 == 0 else reversed(names):
            show_progress(f"round {number + 1} of {warm_up + rounds}: {name}")
            value = await sides[name]()
            if number >= warm_up:
                found[name].append(value)
    show_progress("")
    return found


def show_progress(text: str) -> None:
    """One line on a terminal, that the next one takes the place of."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text[:100]}", end="", file=sys.stderr, flush=True)
