"""Cancelling a long prefill of SmolLM2: soon, and without a trace."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from chain import check_equal, greedy
from gguf_worker import GgufWorkerError, Output, Recipe, Route, ShardSpec, Worker
from gguf_worker.certification import random_tokens
from tally import Tally

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]

LAYERS = 30
ROWS = 4096
CANCELS = 100
N_VOCAB = 49152


async def _cancel_once(worker: Worker, session: int, delay_s: float) -> float:
    """Seconds from a cancel to the end of the forward that it cancels, after `delay_s` of computing."""
    ended = anyio.Event()
    codes: list[str] = []

    async def prefill() -> None:
        try:
            await worker.forward(
                session=session,
                position=0,
                output=Output.NONE,
                tokens=random_tokens(ROWS, N_VOCAB),
            )
        except GgufWorkerError as error:
            codes.append(error.code)
        ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(prefill)
        with anyio.move_on_after(delay_s):
            await ended.wait()
        (request,) = worker.in_flight
        began = time.perf_counter()
        await worker.cancel(request)
        await ended.wait()
        took_s = time.perf_counter() - began
    assert codes == ["cancelled"]
    return took_s


async def test_smollm2_cancelled_prefill_answers_soon_and_leaves_nothing(
    smollm2_path: Path, real_cache: Path, tally: Tally, note: Callable[[str], None]
) -> None:
    """A prefill of 4,096 rows, cancelled at a hundred random moments: each answer is `cancelled`, the KV
    cells are what they were, and afterwards a generation has the bits that it had before."""
    spec = ShardSpec(str(smollm2_path), recipe=Recipe(n_ctx=8192), max_sessions=2, cache_dir=str(real_cache))
    moments = random.Random(3)
    prompt = random_tokens(50, N_VOCAB, seed=9)
    async with Route.start([spec]) as route:
        (worker,) = route.workers
        before = await greedy(route, prompt, 8)
        session = await worker.open_session()
        latencies = []
        for _ in range(CANCELS):
            latencies.append(await _cancel_once(worker, session.id, moments.uniform(0.01, 0.6)))
            health = await worker.health()
            assert (health.kv_cells_used, health.sessions, health.queued) == (0, 1, 0)
        await session.close()
        check_equal(tally, before, await greedy(route, prompt, 8), "after the cancels")
    ordered = sorted(latencies)
    note(
        f"cancel of a {ROWS}-row prefill: p50 {1e3 * ordered[CANCELS // 2]:.1f} ms, "
        f"p99 {1e3 * ordered[CANCELS * 99 // 100]:.1f} ms, of {CANCELS} (goal: 50 ms)"
    )


async def test_smollm2_innocent_sessions_do_not_notice_a_cancel(
    smollm2_path: Path, real_cache: Path, tally: Tally
) -> None:
    """While one session's prefill is cancelled again and again, another one, in the same steps, draws the
    bits that it draws alone: what was aborted for the other's sake is run again."""
    recipe = Recipe(n_ctx=4096, n_threads=1, kv_unified=False)
    shards = [
        ShardSpec(str(smollm2_path), layers=layers, recipe=recipe, max_sessions=2, cache_dir=str(real_cache))
        for layers in pairwise((0, LAYERS))
    ]
    prompt = random_tokens(40, N_VOCAB, seed=10)
    moments = random.Random(4)
    async with Route.start(shards) as route:
        (worker,) = route.workers
        alone = await greedy(route, prompt, 24)
        victim = await worker.open_session()
        done = anyio.Event()

        async def generate() -> None:
            check_equal(tally, alone, await greedy(route, prompt, 24), "beside a cancelled prefill")
            done.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(generate)
            while not done.is_set():
                with anyio.move_on_after(moments.uniform(0.01, 0.2)):
                    await victim.forward(tokens=random_tokens(1024, N_VOCAB), output=Output.NONE)
                await victim.trim(0)
