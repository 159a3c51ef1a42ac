"""Sides in turns."""

from __future__ import annotations

import pytest

from kit.rounds import Turn, in_turns

pytestmark = pytest.mark.anyio


async def test_every_other_round_goes_the_other_way_round() -> None:
    """No side always follows the same one; a round that warms up gives no value."""
    order: list[str] = []
    assert await in_turns({name: _turn(name, order) for name in "abc"}, rounds=3) == {
        "a": [6.0, 7.0, 12.0],
        "b": [5.0, 8.0, 11.0],
        "c": [4.0, 9.0, 10.0],
    }
    assert "".join(order) == "abccbaabccba"


async def test_nothing_is_thrown_away_without_a_warm_up() -> None:
    assert await in_turns({"a": _turn("a", [])}, rounds=2, warm_up=0) == {"a": [1.0, 2.0]}


async def test_a_failing_side_ends_it() -> None:
    """What cannot be done is no value."""

    async def fail() -> float:
        raise RuntimeError("no peer")

    with pytest.raises(RuntimeError, match="no peer"):
        await in_turns({"a": fail}, rounds=1)


def _turn(name: str, order: list[str]) -> Turn:
    """Its value says how many turns there were."""

    async def turn() -> float:
        order.append(name)
        return float(len(order))

    return turn
