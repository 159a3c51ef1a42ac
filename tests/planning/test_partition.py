"""Cutting a row of pieces evenly: compared with every division there is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, combinations_with_replacement, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_worker.planning.partition import balanced

PIECES = st.lists(st.integers(0, 30), min_size=1, max_size=8)


def _loads(parts: Sequence[tuple[int, int]], pieces: Sequence[int], rooms: Sequence[int]) -> list[float]:
    return [sum(pieces[start:end]) / room for (start, end), room in zip(parts, rooms, strict=True)]


def _all_divisions(n_pieces: int, n_parts: int, least: int) -> Iterator[list[tuple[int, int]]]:
    cuts = (
        combinations(range(1, n_pieces), n_parts - 1)
        if least
        else combinations_with_replacement(range(n_pieces + 1), n_parts - 1)
    )
    for chosen in cuts:
        yield list(pairwise((0, *chosen, n_pieces)))


@given(pieces=PIECES, rooms=st.lists(st.integers(1, 9), min_size=1, max_size=4), least=st.integers(0, 1))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_balanced_is_the_best_of_all_divisions(pieces: list[int], rooms: list[int], least: int) -> None:
    """No other division has a smaller largest load, and of those that have the same none is more even."""
    rooms = rooms[: len(pieces)]

    def load(index: int, start: int, end: int) -> float:
        return sum(pieces[start:end]) / rooms[index]

    def badness(parts: Sequence[tuple[int, int]]) -> tuple[float, float]:
        loads = _loads(parts, pieces, rooms)
        return max(loads), sum(one * one for one in loads)

    parts = balanced(len(pieces), len(rooms), load, least=least)
    assert parts[0][0] == 0
    assert parts[-1][1] == len(pieces)
    assert all(one[1] == other[0] for one, other in pairwise(parts))
    assert all(end - start >= least for start, end in parts)
    best = min(badness(other) for other in _all_divisions(len(pieces), len(rooms), least))
    assert badness(parts) == pytest.approx(best)


@pytest.mark.parametrize(
    ("n_pieces", "n_parts", "lengths"),
    [
        (30, 1, [30]),
        (30, 3, [10, 10, 10]),
        (30, 4, [8, 8, 7, 7]),
        (30, 7, [5, 5, 4, 4, 4, 4, 4]),
        (2, 2, [1, 1]),
    ],
)
def test_equal_pieces_are_divided_evenly(n_pieces: int, n_parts: int, lengths: list[int]) -> None:
    """Where all pieces weigh the same, parts differ by one piece at most, and the longer ones come first."""
    parts = balanced(n_pieces, n_parts, lambda _, start, end: end - start)
    assert [end - start for start, end in parts] == lengths


def test_part_without_room_is_left_empty() -> None:
    """A part that may be empty is, where that is better for the others."""
    rooms = (4, 1, 4)
    parts = balanced(2, 3, lambda index, start, end: 4 * (end - start) / rooms[index], least=0)
    assert parts == [(0, 1), (1, 1), (1, 2)]
