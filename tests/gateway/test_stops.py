"""Stop strings: the same text wherever it is cut into pieces, and nothing held back longer than needed."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from gguf_worker.gateway.stops import StopFinder

TEXTS = some.text(alphabet="ab\u2603", max_size=24)
STOPS = some.lists(some.text(alphabet="ab\u2603", min_size=1, max_size=4), max_size=4)


def read(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    """The text that a client sees, and whether it ended at a stop string."""
    finder = StopFinder(stops)
    shown = "".join(finder.feed(piece) for piece in pieces)
    return shown + finder.finish(), finder.found


@settings(deadline=None)
@given(text=TEXTS, stops=STOPS, cuts=some.lists(some.integers(0, 24), max_size=8))
def test_pieces_do_not_matter(text: str, stops: list[str], cuts: list[int]) -> None:
    """Any division of a text into pieces gives what its characters one by one give."""
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[start:end] for start, end in pairwise(places)]
    assert read(pieces, stops) == read(list(text), stops)


@settings(deadline=None)
@given(text=TEXTS, stops=STOPS)
def test_text_ends_before_the_stop_that_is_complete_first(text: str, stops: list[str]) -> None:
    """As a search through all of the text says."""
    shown, found = read([text], stops)
    ends = [(end, end - len(s)) for s in stops for end in range(len(text) + 1) if text[:end].endswith(s)]
    assert found == bool(ends)
    assert shown == (text[: min(ends)[1]] if ends else text)


@settings(deadline=None)
@given(text=TEXTS, stops=STOPS)
def test_nothing_is_held_back_that_cannot_become_a_stop(text: str, stops: list[str]) -> None:
    """What is held back is how a stop string begins."""
    finder = StopFinder(stops)
    shown = finder.feed(text)
    if not finder.found:
        held = text[len(shown) :]
        assert held == "" or any(stop.startswith(held) for stop in stops)


@pytest.mark.parametrize(
    ("pieces", "stops", "expected"),
    [
        (["ab", "c"], ["b", "abc"], "a"),
        (["xab"], ["b", "ab"], "x"),
        (["E", "N", "D?"], ["END"], ""),
        (["E", "N"], ["END"], "EN"),
    ],
)
def test_stop_across_pieces(pieces: list[str], stops: list[str], expected: str) -> None:
    assert read(pieces, stops)[0] == expected
