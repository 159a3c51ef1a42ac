"""Our side, on the fake engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

import fakes
from gguf_worker import Route
from kit import ours
from kit.ours import Decoded

pytestmark = pytest.mark.anyio

PROMPT = (1, 2, 3)


async def test_every_number_of_stages_draws_the_same() -> None:
    drawn = set()
    for ranges in ([(0, 0)], [(0, 5), (5, 0)], [(0, 3), (3, 7), (7, 0)]):
        async with Route.start([fakes.spec(layers) for layers in ranges], settings=fakes.SETTINGS) as route:
            decoded = await ours.decode(route, PROMPT, 8)
        drawn.add(decoded.tokens)
        assert decoded.first_s > 0
        assert decoded.rest_s > 0
    (tokens,) = drawn
    assert len(tokens) <= 9


def test_speed_is_of_the_decode_alone() -> None:
    """The first token comes from the prefill."""
    decoded = Decoded(tokens=(5, 6, 7, 8, 9), first_s=100.0, rest_s=2.0)
    assert decoded.tokens_per_s == 2.0
    assert replace(decoded, tokens=(5, 6, 7)).tokens_per_s == 1.0
