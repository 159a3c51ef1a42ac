"""The first of several stages has the next row while whoever reads the last one still has it."""

from __future__ import annotations

import anyio
import pytest

from fakes import LAYERS, MODEL, SETTINGS
from gguf_worker import FinishReason, Output, Route, Sampling, ShardSpec

pytestmark = pytest.mark.anyio

PROMPT = [72, 101, 108, 108, 111]
EOS = 0
NEVER_ENDS = Sampling(temperature=1.0, seed=7, logit_bias=((EOS, float("-inf")),))


def shards(model: str = MODEL) -> list[ShardSpec]:
    return [ShardSpec(model, layers=layers, engine="fake") for layers in ((0, 4), (4, LAYERS))]


async def rows_of(route: Route) -> list[int]:
    return [(await worker.health()).rows for worker in route.workers]


async def test_only_the_first_stage_goes_on_while_a_token_is_read() -> None:
    async with Route.start(shards(), settings=SETTINGS) as route:
        generation = route.generate(PROMPT, max_tokens=6, sampling=NEVER_ENDS)
        async for step in generation:
            held = len(PROMPT) + step.index
            if step.finish_reason is None:
                with anyio.fail_after(20):
                    while (await rows_of(route))[0] == held:
                        pass
                held += 1
            assert await rows_of(route) == [held, len(PROMPT) + step.index]
        assert generation.finish_reason is FinishReason.LENGTH


async def test_the_end_of_the_text_begins_nothing() -> None:
    async with Route.start(shards(), settings=SETTINGS) as route:
        ends = Sampling(logit_bias=((EOS, 1000.0),))
        steps = [step async for step in route.generate(PROMPT, max_tokens=6, sampling=ends)]
        assert [step.end_of_generation for step in steps] == [True]
        assert await rows_of(route) == [len(PROMPT)] * 2


async def test_one_that_is_left_leaves_nothing() -> None:
    async with Route.start(shards(), settings=SETTINGS) as route:
        async with route.generate(PROMPT, max_tokens=50, sampling=NEVER_ENDS) as generation:
            async for step in generation:
                if step.index == 3:
                    break
        for worker in route.workers:
            health = await worker.health()
            assert (health.sessions, health.kv_cells_used, health.queued) == (0, 0, 0)


async def test_another_token_than_the_drawn_one() -> None:
    """The row that was begun is taken back."""
    async with Route.start(shards(), settings=SETTINGS) as route:
        async with route.open_chain() as fresh:
            await fresh.forward(PROMPT, Output.NONE)
            expected = (await fresh.forward([33], Output.LOGITS)).logits
        async with route.open_chain() as chain:
            drawn = await chain.forward(PROMPT, Output.TOKEN, more=True)
            assert drawn.token != 33
            assert (await chain.forward([33], Output.LOGITS)).logits == expected
            assert chain.position == len(PROMPT) + 1


@pytest.mark.parametrize("what", ["trim", "fork"])
async def test_trim_and_fork_have_none_of_it(what: str) -> None:
    async with Route.start(shards(), settings=SETTINGS) as route:
        async with route.open_chain() as fresh:
            await fresh.forward(PROMPT[:3], Output.NONE)
            expected = (await fresh.forward([40], Output.LOGITS)).logits
        async with route.open_chain() as chain:
            await chain.forward(PROMPT, Output.TOKEN, more=True)
            if what == "trim":
                await chain.trim(3)
                assert (await chain.forward([40], Output.LOGITS)).logits == expected
            else:
                async with await chain.fork(3) as fork:
                    assert (await fork.forward([40], Output.LOGITS)).logits == expected


async def test_recurrent_models_wait_to_be_asked() -> None:
    """They could not take the row back."""
    async with (
        Route.start(shards(f"{MODEL},recurrent=1"), settings=SETTINGS) as route,
        route.open_chain() as chain,
    ):
        await chain.forward(PROMPT, Output.TOKEN, more=True)
        assert [worker.in_flight for worker in route.workers] == [{}, {}]
        assert await rows_of(route) == [len(PROMPT)] * 2
