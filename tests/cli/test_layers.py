"""How layer ranges are read, and how a model is divided."""

from __future__ import annotations

import pytest

from gguf_worker.cli.errors import CommandError
from gguf_worker.cli.layers import parse_cuts, parse_layers, ranges_of_cuts

NINES = "9" * 10
"""More digits than any number of layers has."""


def test_layers_read_from_text() -> None:
    """A range is half open and written START:END."""
    assert parse_layers("8:16") == (8, 16)


@pytest.mark.parametrize(
    "text", ["", "8", "8:", ":8", "a:b", "8:8", "9:8", "-1:3", "1:2:3", "1.0:2", "0:" + NINES]
)
def test_layers_refused_when_not_a_range(text: str) -> None:
    """Anything but a range that holds a layer is refused with the way to write it."""
    with pytest.raises(CommandError, match=r"--layers .*\(.+\)"):
        parse_layers(text)


def test_cuts_read_from_text() -> None:
    """Cuts are separated by commas; blanks around them do not matter."""
    assert parse_cuts("3, 7,21") == (3, 7, 21)


@pytest.mark.parametrize("text", ["", "0", "0,4", "4,4", "7,3", "a", "3,", "-3", "3;7", NINES])
def test_cuts_refused_when_they_do_not_rise(text: str) -> None:
    """A cut before the first layer, twice, out of order or not a number is refused."""
    with pytest.raises(CommandError, match=r"--cuts .*\(.+\)"):
        parse_cuts(text)


def test_ranges_lie_between_cuts() -> None:
    """Ranges follow each other and cover the model."""
    assert ranges_of_cuts((1, 29), 30) == ((0, 1), (1, 29), (29, 30))
    assert ranges_of_cuts((), 30) == ((0, 30),)


def test_cut_refused_when_outside_the_model() -> None:
    """A cut at or past the end is refused, naming it and the model's layers."""
    with pytest.raises(CommandError, match=r"cut 30 .* 30 layers .*between 1 and 29"):
        ranges_of_cuts((10, 30), 30)
