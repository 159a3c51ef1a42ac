"""Drawing tokens through a chain: repeatable, the same through any cuts, and with what it could have been."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from fakes import LAYERS, SETTINGS, spec
from gguf_worker import Output, Route, Sampling, SessionChain, ShardSpec, Step
from gguf_worker.errors import LocalProtocolError, RequestError

pytestmark = pytest.mark.anyio

PROMPT = [72, 101, 108, 108, 111]
WARM = Sampling(temperature=20.0, seed=7)


def shards(*cuts: int, **changes: object) -> list[ShardSpec]:
    """The fake model cut at these layers."""
    return [spec(layers, **changes) for layers in pairwise((0, *cuts, LAYERS))]


async def draw(route: Route, sampling: Sampling, n_tokens: int = 16) -> list[Step]:
    return [step async for step in route.generate(PROMPT, max_tokens=n_tokens, sampling=sampling)]


def tokens_of(steps: Sequence[Step]) -> list[int]:
    return [step.token for step in steps]


@pytest.mark.parametrize(
    "sampling",
    [
        WARM,
        replace(WARM, top_k=5),
        replace(WARM, repeat_penalty=1.8, repeat_last_n=-1),
        Sampling(frequency_penalty=0.7, presence_penalty=0.3),
        Sampling(logit_bias=((5, 1000.0),)),
        replace(WARM, top_logprobs=4),
    ],
    ids=["temperature", "top-k", "repeat", "frequency", "bias", "top"],
)
async def test_drawn_tokens_are_the_same_through_any_cuts(sampling: Sampling) -> None:
    """The last stage draws from the same logits and the same tokens, however many stages there are."""
    runs = []
    for cuts in ((), (4, 8)):
        async with Route.start(shards(*cuts), settings=SETTINGS) as route:
            runs.append(await draw(route, sampling))
            assert await draw(route, sampling) == runs[-1]
    assert runs[0] == runs[1]


async def test_another_seed_draws_other_tokens() -> None:
    """At a high temperature two seeds do not agree."""
    async with Route.start(shards(6), settings=SETTINGS) as route:
        drawn = [tokens_of(await draw(route, replace(WARM, seed=seed))) for seed in range(4)]
    assert len({tuple(tokens) for tokens in drawn}) > 1


async def test_draw_is_the_same_after_a_replay() -> None:
    """A chain that is given the prompt and what was drawn goes on as the first one did."""
    async with Route.start(shards(6), settings=SETTINGS) as route:
        generation = route.generate(PROMPT, max_tokens=12, sampling=replace(WARM, repeat_penalty=1.3))
        drawn = tokens_of([step async for step in generation])
        for known in range(1, len(drawn)):
            async with route.open_chain(sampling=generation.sampling) as chain:
                result = await chain.forward([*PROMPT, *drawn[:known]], Output.TOKEN)
            assert result.token == drawn[known]


async def test_bias_decides() -> None:
    """A large bias makes a token win; minus infinity keeps it out."""
    async with Route.start(shards(6), settings=SETTINGS) as route:
        favoured = await draw(route, Sampling(logit_bias=((65, 1000.0),)), 4)
        (usual,) = await draw(route, Sampling(), 1)
        (other,) = await draw(route, Sampling(logit_bias=((usual.token, -float("inf")),)), 1)
    assert tokens_of(favoured) == [65] * 4
    assert other.token != usual.token


async def test_step_brings_what_could_have_been_drawn() -> None:
    """Candidates with their text, best first, at each step; none where none were asked for."""
    async with Route.start(shards(6), settings=SETTINGS) as route:
        steps = await draw(route, Sampling(top_logprobs=3), 5)
        plain = await draw(route, Sampling(), 5)
    assert [len(step.top) for step in steps] == [3] * len(steps)
    assert all(step.top[0].token == step.token for step in steps)
    assert all(step.end_of_generation or step.top[0].text == step.text_bytes for step in steps)
    assert [step.top for step in plain] == [()] * len(plain)
    assert tokens_of(steps) == tokens_of(plain)


async def test_grammar_governs_from_the_end_of_the_prompt() -> None:
    """Where a grammar starts is made explicit, so that a replay of prompt and text does not move it."""
    async with Route.start(shards(6), settings=SETTINGS) as route:
        grammar = Sampling(grammar="root ::= [a-z]+")
        assert route.generate(PROMPT, max_tokens=1, sampling=grammar).sampling.grammar_start == len(PROMPT)
        given = replace(grammar, grammar_start=2)
        assert route.generate(PROMPT, max_tokens=1, sampling=given).sampling == given
        assert route.generate(PROMPT, max_tokens=1, sampling=WARM).sampling == WARM


async def logits_after(chain: SessionChain, tokens: Sequence[int]) -> bytes:
    return bytes((await chain.forward(tokens, Output.LOGITS)).logits or b"")


async def test_fork_of_a_chain_goes_on_on_every_stage() -> None:
    """Fork and origin go on independently of each other, each as a fresh chain of the same tokens."""
    async with Route.start(shards(4, 8), settings=SETTINGS) as route:
        async with route.open_chain() as fresh:
            expected = await logits_after(fresh, [*PROMPT[:3], 33])
        async with route.open_chain() as fresh:
            untouched = await logits_after(fresh, [*PROMPT, 34])
        async with route.open_chain() as chain:
            await chain.forward(PROMPT, Output.NONE)
            async with await chain.fork(3) as fork:
                assert (fork.position, chain.position) == (3, 5)
                assert await logits_after(fork, [33]) == expected
                await fork.trim(0)
            assert await logits_after(chain, [34]) == untouched
        assert [(await worker.health()).sessions for worker in route.workers] == [0, 0, 0]


@pytest.mark.parametrize("position", [-1, 6])
async def test_fork_of_a_chain_past_what_there_is_is_refused(position: int) -> None:
    """Nothing is opened on any stage."""
    async with Route.start(shards(6), settings=SETTINGS) as route, route.open_chain() as chain:
        await chain.forward(PROMPT, Output.NONE)
        with pytest.raises(LocalProtocolError, match="cannot be forked at"):
            await chain.fork(position)
        assert [(await worker.health()).sessions for worker in route.workers] == [1, 1]


async def test_fork_that_one_stage_refuses_leaves_none_on_the_others() -> None:
    """A stage without a free session ends the forks of the stages before it."""
    first, last = shards(6)
    route = Route.start([first, replace(last, max_sessions=1)], settings=SETTINGS)
    async with route, route.open_chain() as chain:
        await chain.forward(PROMPT, Output.NONE)
        with pytest.raises(RequestError) as caught:
            await chain.fork()
        assert caught.value.code == "capacity"
        assert [(await worker.health()).sessions for worker in route.workers] == [1, 1]
        assert (await chain.forward([33], Output.NONE)).length == 6
