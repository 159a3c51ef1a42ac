"""A chain of supervised workers computes the very bits of the unsplit model, on toy models of every kind."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from chain import SETTINGS, check_equal, greedy, greedy_in, specs
from gguf_worker import Route
from reference import Reference
from tally import Tally
from toy import KINDS

pytestmark = pytest.mark.anyio

PROMPT = "the thing in the other hand, and another one"
STEPS = 16

CUT_IN_MANY_WAYS = (
    "llama-f32-tied",
    "llama-f32-untied",
    "llama-moe4",
    "llama-q8_0",
    "llama-q8_0-tied",
    "llama-q4_k",
    "llama-q4_k-tied",
    "llama-split",
    "llama-split-tied",
)
CUTS = ((), (3,), (2, 4), (1, 5), (1, 2, 4))


async def _check(model: Path, kind: str, cuts: tuple[int, ...], cache_dir: Path, tally: Tally) -> None:
    with Reference(model, SETTINGS) as reference:
        prompt = reference.tokenize(PROMPT)
        expected = reference.greedy(prompt, STEPS)
        async with Route.start(specs(model, KINDS[kind].layers, cuts, cache_dir)) as route:
            actual = await greedy(route, prompt, STEPS)
    check_equal(tally, expected, actual, f"{kind} cut at {cuts}")


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("kind", CUT_IN_MANY_WAYS)
async def test_chain_equals_unsplit_for_any_cut(
    kind: str, cuts: tuple[int, ...], build_toy: Callable[[str], Path], cache_dir: Path, tally: Tally
) -> None:
    """Wherever the model is cut, every logit of prefill and decode has the same bits."""
    await _check(build_toy(kind), kind, cuts, cache_dir, tally)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in CUT_IN_MANY_WAYS])
async def test_chain_equals_unsplit_for_any_kind(
    kind: str, build_toy: Callable[[str], Path], cache_dir: Path, tally: Tally
) -> None:
    """Whatever the tensor type or the peculiarity of the model, two stages have the same bits as one."""
    layers = KINDS[kind].layers
    await _check(build_toy(kind), kind, (layers // 2,) if layers > 1 else (), cache_dir, tally)


async def test_sessions_side_by_side_equal_unsplit(
    build_toy: Callable[[str], Path], cache_dir: Path, tally: Tally
) -> None:
    """Three sessions that share workers and batches each have the bits of a run alone.

    Stock llama.cpp gives that for Q8_0 weights as long as fewer than 64 rows are computed at once (from there
    on its flash attention takes another kernel, for all rows) and no session takes cells that another gave
    back (their order would be another one). So the sessions stay open until all are done.
    """
    kind, n_ubatch = "llama-q8_0", 32
    prompts = (PROMPT, "a", "and then there is a rather longer text that goes on for a while. " * 2)
    shards = specs(build_toy(kind), KINDS[kind].layers, (2, 4), cache_dir, n_ubatch=n_ubatch)
    with Reference(build_toy(kind), replace(SETTINGS, n_ubatch=n_ubatch)) as reference:
        expected = [reference.greedy(reference.tokenize(prompt), STEPS) for prompt in prompts]
    async with Route.start(shards) as route, AsyncExitStack() as sessions:
        chains = [await sessions.enter_async_context(route.open_chain()) for _ in prompts]

        async def check_one(index: int) -> None:
            actual = await greedy_in(chains[index], expected[index].prompt, STEPS)
            check_equal(tally, expected[index], actual, f"session {index} of {len(prompts)}")

        async with anyio.create_task_group() as group:
            for index in range(len(prompts)):
                group.start_soon(check_one, index)


async def test_tokens_equal_the_librarys_own(build_toy: Callable[[str], Path], cache_dir: Path) -> None:
    """Tokenize and detokenize give what the library itself gives, also for bytes without a piece."""
    text = "the thing, Ünïcödé and \N{GRINNING FACE} too"
    for kind in ("llama-q8_0", "llama-bpe"):
        with Reference(build_toy(kind), SETTINGS) as reference:
            async with Route.start(specs(build_toy(kind), KINDS[kind].layers, (), cache_dir)) as route:
                (worker,) = route.workers
                tokens = list(await worker.tokenize(text))
                assert tokens == reference.tokenize(text)
                assert await worker.detokenize(tokens) == reference.detokenize(tokens)
