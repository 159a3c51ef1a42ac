"""SmolLM2 in three workers that are killed while they generate."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from gguf_worker import Recipe, Route, Sampling, ShardSpec, Step, WorkerSettings
from gguf_worker.testing.figures.latency import AT_ONCE
from gguf_worker.testing.figures.replay import CUTS, KEPT, replayed_route
from gguf_worker.testing.report import figure_line

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]

EVERY = 8
"""Tokens between two kills here; `make faults` kills after each."""


async def test_smollm2_says_the_same_while_its_workers_are_killed(
    smollm2_path: Path, real_cache: Path, note: Callable[[str], None]
) -> None:
    """Greedy and seeded, with kept rows and without: the same tokens, bytes and log-probabilities."""
    figure = await replayed_route(smollm2_path, EVERY, real_cache)
    note(figure_line(figure))
    assert figure.problems == ()


PROMPTS = {
    "Once upon a time, in a village by the sea,": Sampling(top_logprobs=2),
    "The capital of France is": Sampling(temperature=0.9, seed=1, top_logprobs=2),
    "def sorted(values):": Sampling(temperature=0.7, seed=2, repeat_penalty=1.2, top_logprobs=2),
    "List three colours: " * 20: Sampling(temperature=1.2, seed=3, top_p=0.9, top_logprobs=2),
}
N_TOKENS = 32
RECIPE = Recipe(n_ctx=1024, n_threads=1, kv_unified=False)
"""Each session has KV cells of its own: this model's rows are then the same in whatever company."""
DRAWN_PER_KILL = 16


async def test_generations_at_once_outlive_kills_of_their_workers(
    smollm2_path: Path, real_cache: Path, note: Callable[[str], None]
) -> None:
    """Four at once over three workers, one of which is killed whenever they have drawn so many tokens: each
    says what it says alone and undisturbed, to the last bit of its log-probabilities."""
    specs = [
        ShardSpec(
            str(smollm2_path),
            layers=layers,
            recipe=RECIPE,
            max_sessions=len(PROMPTS),
            cache_dir=str(real_cache),
        )
        for layers in pairwise(CUTS)
    ]
    chance = random.Random(8)
    drawn = kills = replays = 0
    async with Route.start(specs, settings=WorkerSettings(restart=AT_ONCE), replay=KEPT) as route:

        async def run(prompt: str, texts: dict[str, list[Step]], *, is_spared: bool) -> None:
            nonlocal drawn, kills, replays
            tokens = await route.tokenize(prompt)
            generation = route.generate(tokens, max_tokens=N_TOKENS, sampling=PROMPTS[prompt])
            steps = texts.setdefault(prompt, [])
            async for step in generation:
                steps.append(step)
                drawn += 1
                if not is_spared and drawn % DRAWN_PER_KILL == 0:
                    living = [worker for worker in route.workers if worker.exit is None]
                    os.kill(chance.choice(living).pid, signal.SIGKILL)
                    kills += 1
            replays += generation.record.replays

        alone: dict[str, list[Step]] = {}
        for prompt in PROMPTS:
            await run(prompt, alone, is_spared=True)
        drawn, together = 0, dict[str, list[Step]]()
        async with anyio.create_task_group() as tasks:
            for prompt in PROMPTS:
                tasks.start_soon(partial(run, prompt, together, is_spared=False))
        await route.wait_ready()
        assert together == alone
        assert [(await worker.health()).sessions for worker in route.workers] == [0, 0, 0]
        assert route.replay.budget.used == 0
    note(f"4 generations at once: {drawn} tokens, {kills} kills, {replays} stages brought back, all the same")
    assert kills >= 4
    assert replays > kills
