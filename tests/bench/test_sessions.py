"""Our sides of the question of eight sessions, on the fake engine, and what is made of their texts."""

from __future__ import annotations

from itertools import pairwise

import pytest

import fakes
from gguf_worker import Route
from sessions import SEQUENTIAL, SERVER, SHARD, Ours, Texts, texts_that_differ, what_is_wrong

PROMPTS = [(1, 2, 3), (4, 5), (6, 7, 8, 9)]


@pytest.mark.anyio
@pytest.mark.parametrize("cuts", [(), (5,)], ids=["one stage", "two stages"])
async def test_texts_are_the_same_together_and_alone(cuts: tuple[int, ...]) -> None:
    """The fake engine computes exactly, in whatever company."""
    specs = [fakes.spec(layers) for layers in pairwise((0, *cuts, fakes.LAYERS))]
    async with Route.start(specs, settings=fakes.SETTINGS) as route:
        side = Ours(route)
        _, expected = await side.one_by_one(PROMPTS, 4)
        assert set(side.rows_of_a_step.values()) == {1.0}
        seconds, texts = await side.together(PROMPTS, 4)
        facts = side.facts()
    assert texts == expected
    assert seconds == side.elapsed_s > 0
    assert list(side.busy_s) == [f"layers {spec.layers[0]}:{spec.layers[1]}" for spec in specs]
    assert all(1.0 <= rows <= len(PROMPTS) for rows in side.rows_of_a_step.values())
    assert facts["rows of a decode step, mean"] == side.rows_of_a_step


def test_sides_that_drew_other_texts_are_named() -> None:
    expected: Texts = [(1, 2, 3), (4, 5, 6)]
    drawn: dict[str, Texts] = {SERVER: [(1, 2, 3), (4, 9, 6)], SHARD: expected}
    assert texts_that_differ(expected, drawn) == {SERVER: "1 of 2; of text 2 token 1 of 3 is 9, not 5"}


def test_only_texts_that_are_drawn_alone_must_be_the_same() -> None:
    expected: Texts = [(1, 2, 3), (4, 5, 6)]
    others: Texts = [(1, 2, 3), (4, 9, 6)]
    assert what_is_wrong(expected, {SERVER: others, SHARD: others, SEQUENTIAL: expected}) == []
    (problem,) = what_is_wrong(expected, {SEQUENTIAL: others})
    assert problem.startswith(f"{SEQUENTIAL}: other texts: 1 of 2")


def test_no_text_may_end_early() -> None:
    expected: Texts = [(1, 2, 3), (4, 5, 6)]
    drawn: dict[str, Texts] = {SHARD: [(1, 2, 3), (4, 5)], SEQUENTIAL: expected}
    assert what_is_wrong(expected, drawn) == [f"{SHARD}: a text ended early"]
