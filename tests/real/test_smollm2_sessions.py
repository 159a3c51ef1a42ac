"""Many sessions of SmolLM2 in the same workers: none can tell that it is not alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from chain import THREADS, check_equal, greedy_in
from gguf_worker import Output, Recipe, Route, SessionChain, ShardSpec
from gguf_worker.certification import Comparison, compare, random_tokens
from reference import Greedy, Reference, Settings
from tally import Tally

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]

LAYERS = 30
CUTS = (12,)
SESSIONS = 8
LENGTHS = (1, 150, 7, 64, 33, 100, 2, 260, 18, 5, 90, 40)
"""Rows of each prompt: more sessions than there is room for, so that some join when others leave."""
STEPS = (30, 9, 24, 12, 40, 6, 16, 8, 20, 36, 10, 14)
"""Tokens that each session draws; all of them end at different times."""
N_VOCAB = 49152
N_CTX = 512


def _prompt(number: int) -> tuple[int, ...]:
    return random_tokens(LENGTHS[number], N_VOCAB, seed=100 + number)


def _specs(model: Path, cache: Path, recipe: Recipe, cuts: Sequence[int] = CUTS) -> list[ShardSpec]:
    return [
        ShardSpec(str(model), layers=layers, recipe=recipe, max_sessions=SESSIONS, cache_dir=str(cache))
        for layers in pairwise((0, *cuts, LAYERS))
    ]


@pytest.fixture(scope="module")
def alone(smollm2_path: Path) -> list[Greedy]:
    """Each session by itself, in stock llama.cpp."""
    with Reference(smollm2_path, Settings(threads=THREADS, n_ctx=N_CTX)) as reference:
        return [reference.greedy(_prompt(n), STEPS[n]) for n in range(len(LENGTHS))]


async def _each(route: Route, run: Callable[[int, SessionChain], Awaitable[None]]) -> None:
    """Runs all sessions, eight at a time."""
    room = anyio.CapacityLimiter(SESSIONS)

    async def one(number: int) -> None:
        async with room, route.open_chain() as chain:
            await run(number, chain)

    async with anyio.create_task_group() as tasks:
        for number in range(len(LENGTHS)):
            tasks.start_soon(one, number)


async def test_smollm2_sessions_together_equal_each_alone(
    smollm2_path: Path, real_cache: Path, alone: list[Greedy], tally: Tally
) -> None:
    """Eight sessions of different lengths, interleaved, joining and leaving, through two stages: each has the
    bits that stock llama.cpp gives it alone, and nothing is left of them."""
    recipe = Recipe(n_ctx=N_CTX, n_threads=THREADS, kv_unified=False)

    async def run(number: int, chain: SessionChain) -> None:
        actual = await greedy_in(chain, alone[number].prompt, STEPS[number])
        check_equal(tally, alone[number], actual, f"session {number} of many")

    async with Route.start(_specs(smollm2_path, real_cache, recipe)) as route:
        await _each(route, run)
        for worker in route.workers:
            health = await worker.health()
            assert (health.sessions, health.kv_cells_used, health.queued) == (0, 0, 0)


async def test_smollm2_sessions_that_share_cells_stay_within_a_bound(
    smollm2_path: Path, real_cache: Path, alone: list[Greedy], note: Callable[[str], None]
) -> None:
    """With a unified KV cache a session may lie in cells that another gave back, which changes the order of
    its sums: the same tokens are fed, and no logit moves by more than the stated bound."""
    recipe = Recipe(n_ctx=2048, n_threads=THREADS, kv_unified=True)
    total = Comparison()

    def add(left: bytes, right: bytes) -> None:
        nonlocal total
        total += compare(left, right)

    async def run(number: int, chain: SessionChain) -> None:
        expected = alone[number]
        add(expected.prefill, await _logits(chain, expected.prompt))
        for token, row in zip(expected.tokens, expected.decode, strict=False):
            add(row, await _logits(chain, [token]))

    async with Route.start(_specs(smollm2_path, real_cache, recipe, ())) as route:
        await _each(route, run)
    note(
        f"sessions that share KV cells: {total.different:,} of {total.compared:,} logits differ from a run "
        f"alone, by {total.largest:.4f} at most (bound {BOUND})"
    )
    assert total.compared == sum(run.n_logits for run in alone)
    assert total.largest <= BOUND


BOUND = 3.0
"""Largest difference of a logit, of values that lie between about -10 and 30."""


async def _logits(chain: SessionChain, tokens: Sequence[int]) -> bytes:
    result = await chain.forward(tokens, Output.LOGITS_ALL)
    assert result.logits is not None
    return bytes(result.logits)


@pytest.mark.parametrize("kv_unified", [True, False], ids=["shared cells", "own cells"])
async def test_smollm2_fork_equals_a_fresh_prefill(
    kv_unified: bool, smollm2_path: Path, real_cache: Path, tally: Tally
) -> None:
    """A session forked off at the end of a prefill decodes the very bits of one that was prefilled itself,
    while the one that it came from goes on elsewhere."""
    recipe = Recipe(n_ctx=1024, n_threads=THREADS, kv_unified=kv_unified)
    prompt, rows = random_tokens(200, N_VOCAB, seed=5), random_tokens(20, N_VOCAB, seed=6)
    async with Route.start(_specs(smollm2_path, real_cache, recipe)) as route:
        async with route.open_chain() as fresh:
            await fresh.forward(prompt, Output.NONE)
            expected = [await _logits(fresh, [token]) for token in rows]
        async with route.open_chain() as source:
            await source.forward(prompt, Output.NONE)
            async with await source.fork() as fork:
                for token, row in zip(rows, expected, strict=True):
                    tally.check(row, await _logits(fork, [token]), "fork")
                    await source.forward([token ^ 1], Output.NONE)
        for worker in route.workers:
            assert (await worker.health()).kv_cells_used == 0


async def test_smollm2_fork_in_the_middle_equals_a_fresh_prefill(
    smollm2_path: Path, real_cache: Path, tally: Tally
) -> None:
    """With a chunk-invariant recipe a fork at any position equals a fresh prefill of so many rows."""
    recipe = replace(Recipe(n_ctx=512, n_threads=THREADS, kv_unified=False), n_ubatch=32, prefill_chunk=32)
    prompt, rows = random_tokens(120, N_VOCAB, seed=7), random_tokens(8, N_VOCAB, seed=8)
    async with (
        Route.start(_specs(smollm2_path, real_cache, recipe)) as route,
        route.open_chain() as source,
    ):
        await source.forward(prompt, Output.NONE)
        for position in (1, 31, 32, 77, 119):
            async with await source.fork(position) as fork, route.open_chain() as fresh:
                await fresh.forward(prompt[:position], Output.NONE)
                for token in rows:
                    tally.check(await _logits(fresh, [token]), await _logits(fork, [token]), f"at {position}")
