"""How layer ranges are read, and how a model is divided."""

from __future__ import annotations

import pytest

from gguf_worker.cli.errors import CommandError
from gguf_worker.cli.layers import even_ranges, parse_cuts, parse_layers, ranges_of_cuts

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


@pytest.mark.parametrize(("shards", "layers"), [(1, 30), (3, 30), (4, 30), (7, 30), (30, 30)])
def test_even_ranges_differ_by_one_layer(shards: int, layers: int) -> None:
    """Ranges cover the model in order and their lengths differ by one at most, the longer ones first."""
    ranges = even_ranges(shards, layers)
    lengths = [end - start for start, end in ranges]
    assert len(ranges) == shards
    assert [layer for start, end in ranges for layer in range(start, end)] == list(range(layers))
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


def test_even_ranges_keep_to_the_cut_period() -> None:
    """Where cuts must be multiples of a period, every cut is one."""
    assert even_ranges(2, 12, cut_period=4) == ((0, 8), (8, 12))


def test_even_ranges_refused_for_too_many_shards() -> None:
    """More shards than layers are refused, naming how many can be had."""
    with pytest.raises(CommandError, match=r"31 shards .* 30 layers .*30 shards at most"):
        even_ranges(31, 30)
