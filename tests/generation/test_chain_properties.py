"""Any sequence of forwards, trims, forks and cancels leaves chains with the rows that their user knows of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import anyio
import anyio.lowlevel
from anyio.from_thread import start_blocking_portal
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import LAYERS, SETTINGS, spec
from gguf_worker import Output, Recipe, Route, SessionChain, ShardSpec

MOST_CHAINS = 4
RECIPE = Recipe(n_ctx=512, n_batch=8, n_ubatch=8, prefill_chunk=4)

TOKENS = st.lists(st.integers(2, 255), min_size=1, max_size=11)
COMMAND = st.one_of(
    st.tuples(st.just("forward"), st.integers(0, 99), TOKENS),
    st.tuples(st.just("cancel"), st.integers(0, 99), TOKENS, st.integers(0, 6)),
    st.tuples(st.just("trim"), st.integers(0, 99), st.floats(0, 1)),
    st.tuples(st.just("fork"), st.integers(0, 99), st.floats(0, 1)),
    st.tuples(st.just("close"), st.integers(0, 99)),
)


@dataclass(slots=True)
class Known:
    """A chain and the tokens that it must hold."""

    chain: SessionChain
    tokens: list[int] = field(default_factory=list)


def shards(*cuts: int) -> list[ShardSpec]:
    """The fake model cut at these layers, with room for the chains and one to compare with."""
    return [
        spec(layers, recipe=RECIPE, max_sessions=MOST_CHAINS + 1) for layers in pairwise((0, *cuts, LAYERS))
    ]


async def carry_out(route: Route, known: list[Known], command: Sequence[object]) -> None:
    """One command, on the chains and on what is known of them."""
    kind, number, *arguments = command
    assert isinstance(number, int)
    one = known[number % len(known)]
    match kind, arguments:
        case "forward", [list(tokens)]:
            await forward(one, tokens)
        case "cancel", [list(tokens), int(turns)]:
            await forward_and_cancel(one, tokens, turns)
        case "trim", [float(part)]:
            position = round(part * len(one.tokens))
            await one.chain.trim(position)
            del one.tokens[position:]
        case "fork", [float(part)] if len(known) < MOST_CHAINS:
            position = round(part * len(one.tokens))
            known.append(Known(await one.chain.fork(position), one.tokens[:position]))
        case "close", []:
            await one.chain.release()
            known[number % len(known)] = Known(await SessionChain.open(route.sources))


async def forward(one: Known, tokens: Sequence[int]) -> None:
    await one.chain.forward(tokens, Output.NONE)
    one.tokens += tokens


async def forward_and_cancel(one: Known, tokens: Sequence[int], turns: int) -> None:
    """Gives up after some turns of the event loop; it may have been done by then."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(forward, one, tokens))
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


async def logits_after(chain: SessionChain, tokens: Sequence[int]) -> bytes:
    return bytes((await chain.forward(tokens, Output.LOGITS)).logits or b"")


async def check(route: Route, whole: Route, commands: Sequence[Sequence[object]]) -> None:
    """After the commands each chain goes on as a fresh unsplit session of the tokens that it must hold."""
    known = [Known(await SessionChain.open(route.sources))]
    try:
        for command in commands:
            await carry_out(route, known, command)
            assert [one.chain.position for one in known] == [len(one.tokens) for one in known]
        for one in known:
            async with whole.open_chain() as fresh:
                expected = await logits_after(fresh, [*one.tokens, 9])
            assert await logits_after(one.chain, [9]) == expected
    finally:
        for one in known:
            await one.chain.release()
    for worker in route.workers:
        health = await worker.health()
        assert (health.sessions, health.kv_cells_used) == (0, 0)


def test_chains_hold_what_their_user_knows_of() -> None:
    """Whatever was done before, positions and logits are those of the known tokens; nothing is left on any
    stage."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Route.start(shards(4, 8), settings=SETTINGS)) as route,
        portal.wrap_async_context_manager(Route.start(shards(), settings=SETTINGS)) as whole,
    ):

        @given(commands=st.lists(COMMAND, max_size=12))
        @settings(max_examples=60, deadline=None, derandomize=True, database=None)
        def run(commands: list[tuple[object, ...]]) -> None:
            portal.call(check, route, whole, commands)

        run()
