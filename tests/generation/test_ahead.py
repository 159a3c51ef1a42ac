"""Generations over one stage that holds the whole model, which goes on to the next row by itself."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest

from fakes import SETTINGS, spec
from gguf_worker import RestartPolicy, Route, Sampling
from gguf_worker.generation.replay import ReplaySettings

pytestmark = pytest.mark.anyio

PROMPT = [72, 101, 108, 108, 111]
EOS = 0
NEVER_ENDS = Sampling(temperature=1.0, seed=7, logit_bias=((EOS, float("-inf")),))
TIRELESS = replace(
    SETTINGS, restart=RestartPolicy(max_restarts=1000, backoff_initial_s=0.001, backoff_max_s=0.001)
)


async def test_a_known_length_computes_nothing_in_vain() -> None:
    async with Route.start([spec()], settings=SETTINGS) as route:
        steps = [step async for step in route.generate(PROMPT, max_tokens=20, sampling=NEVER_ENDS)]
        assert len(steps) == 20
        assert (await route.workers[0].health()).rows == len(PROMPT) + 19


async def test_one_that_is_left_computes_one_row_in_vain_at_most() -> None:
    async with Route.start([spec()], settings=SETTINGS) as route:
        async with route.generate(PROMPT, max_tokens=50, sampling=NEVER_ENDS) as generation:
            async for step in generation:
                if step.index == 9:
                    break
        health = await route.workers[0].health()
        assert health.rows in (len(PROMPT) + 9, len(PROMPT) + 10)
        assert (health.sessions, health.kv_cells_used) == (0, 0)


async def test_the_record_says_how_long_the_worker_took() -> None:
    """Also where its reader takes longer than the worker, which has gone on meanwhile."""
    async with Route.start([spec(fault_plan="slow:6")], settings=SETTINGS) as route:
        generation = route.generate(PROMPT, max_tokens=5, sampling=NEVER_ENDS)
        async for step in generation:
            if step.finish_reason is None:
                while not (await route.workers[0].health()).rows > len(PROMPT) + step.index:
                    pass
    assert min(generation.record.token_us) >= 5000
    assert generation.timings.decode_s >= 4 * 0.005


async def test_killed_after_each_token() -> None:
    """The text is the one of a worker that lives."""
    async with Route.start([spec()], settings=TIRELESS, replay=ReplaySettings(max_losses=1000)) as route:
        expected = [step async for step in route.generate(PROMPT, max_tokens=20, sampling=NEVER_ENDS)]
        steps = []
        generation = route.generate(PROMPT, max_tokens=20, sampling=NEVER_ENDS)
        async for step in generation:
            steps.append(step)
            if step.finish_reason is None:
                os.kill(route.workers[0].pid, signal.SIGKILL)
        assert steps == expected
        assert 1 <= generation.record.replays <= 19
