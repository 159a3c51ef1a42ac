"""Comparing blocks of logits bit for bit."""

from __future__ import annotations

import math
import struct

import pytest

from gguf_worker.certification import Comparison, compare


def _floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def test_compare_equal_blocks() -> None:
    """The same bits are no difference, also where the values are not finite."""
    block = _floats(1.0, -2.5, math.nan, math.inf, 0.0)
    assert compare(block, bytearray(block)) == Comparison(compared=5)


def test_compare_counts_and_measures_what_differs() -> None:
    """Each value that differs counts once, and the largest difference is kept."""
    found = compare(_floats(1.0, 2.0, 3.0), _floats(1.0, 2.5, 2.75))
    assert found == Comparison(compared=3, different=2, largest=0.5)


def test_compare_negative_zero() -> None:
    """Bits are compared, not values: negative zero differs from zero by nothing, and differs."""
    assert compare(_floats(0.0), _floats(-0.0)) == Comparison(compared=1, different=1, largest=0.0)


@pytest.mark.parametrize("other", [math.nan, math.inf])
def test_compare_with_a_value_that_is_not_finite(other: float) -> None:
    """A value that is not finite on one side alone is an infinite difference."""
    assert compare(_floats(1.0), _floats(other)) == Comparison(compared=1, different=1, largest=math.inf)


def test_compare_blocks_of_different_length() -> None:
    """Blocks that are not of one length cannot be compared, and both lengths are named."""
    with pytest.raises(ValueError, match="8 bytes where 4 were expected"):
        compare(_floats(1.0), _floats(1.0, 2.0))


def test_comparisons_add_up() -> None:
    """Counts add up, the largest difference stays the largest; nothing compared is not exact."""
    total = Comparison(compared=2, different=1, largest=0.25) + Comparison(compared=3)
    assert total == Comparison(compared=5, different=1, largest=0.25)
    assert Comparison(compared=1).is_exact
    assert not Comparison().is_exact
    assert not total.is_exact


def test_comparison_through_a_map_keeps_an_infinite_difference() -> None:
    """JSON has no infinity, and the comparison survives it."""
    found = Comparison(compared=1, different=1, largest=math.inf)
    assert Comparison.from_map(found.to_map()) == found
