"""Sessions that decode at the same time, through stages of the fake engine."""

from __future__ import annotations

import time
from itertools import pairwise

import anyio
import pytest

from fakes import LAYERS, SETTINGS, spec
from gguf_worker import Output, Route
from gguf_worker.testing import faults, plan

pytestmark = pytest.mark.anyio

N_SESSIONS = 8
N_TOKENS = 6
PROMPT = [72, 101, 108, 108, 111]
STEP_MS = 20
"""So long that what passes between two steps counts for little."""


async def decode_together(route: Route) -> set[int]:
    """Decodes all sessions at once, each behind a prompt of its own; the numbers of rows that the last stage
    had in its steps."""
    rows: set[int] = set()
    n_prefilled = 0
    all_prefilled = anyio.Event()

    async def one(number: int) -> None:
        nonlocal n_prefilled
        async with route.open_chain() as chain:
            token = (await chain.forward([*PROMPT, number], Output.TOKEN)).token
            n_prefilled += 1
            if n_prefilled == N_SESSIONS:
                all_prefilled.set()
            await all_prefilled.wait()
            for _ in range(N_TOKENS):
                result = await chain.forward([token], Output.TOKEN)
                token = result.token
                rows.add(result.batch_rows)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for number in range(N_SESSIONS):
                tasks.start_soon(one, number)
    return rows


async def computed_s(route: Route) -> float:
    """By all stages together, since they were started."""
    return sum([(await worker.health()).compute_us for worker in route.workers]) / 1e6


@pytest.mark.parametrize("cuts", [(6,), (4, 8)], ids=str)
async def test_stages_work_on_different_sessions_at_the_same_time(cuts: tuple[int, ...]) -> None:
    """No stage takes more sessions than its share into a step, so that there are others for the other stages:
    they compute for more time, together, than passes."""
    specs = [
        spec(layers, max_sessions=N_SESSIONS, fault_plan=plan(faults.slow(STEP_MS)))
        for layers in pairwise((0, *cuts, LAYERS))
    ]
    async with Route.start(specs, settings=SETTINGS) as route:
        before, began = await computed_s(route), time.perf_counter()
        rows = await decode_together(route)
        passed = time.perf_counter() - began
        computed = await computed_s(route) - before
    share = -(-N_SESSIONS // len(specs))
    assert max(rows) <= share
    assert computed > passed


async def test_one_stage_takes_all_sessions_into_a_step() -> None:
    """There is no other stage to leave some for."""
    shard = spec(max_sessions=N_SESSIONS, fault_plan=plan(faults.slow(STEP_MS)))
    async with Route.start([shard], settings=SETTINGS) as route:
        rows = await decode_together(route)
    assert max(rows) > N_SESSIONS // 2
