"""Does a route of real workers outlive them, and say the same?"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from gguf_worker.generation.generate import Generation, Step
from gguf_worker.generation.replay import ReplaySettings
from gguf_worker.generation.route import Route
from gguf_worker.identity.recipe import Recipe
from gguf_worker.protocol.messages import Sampling
from gguf_worker.supervision.settings import WorkerSettings
from gguf_worker.supervision.spec import ShardSpec
from gguf_worker.supervision.worker import Worker
from gguf_worker.testing.figures.figure import Figure, percentile
from gguf_worker.testing.figures.latency import AT_ONCE

PROMPT = "The first rule of a good workshop is that every tool has its place, because"
TOKENS = 64
CUTS = (0, 10, 20, 0)
RECIPE = Recipe(n_ctx=1024, n_threads=1, prefill_chunk=128)
KEPT = ReplaySettings(max_losses=1_000_000)
NOT_KEPT = replace(KEPT, memory_bytes=0)
SAMPLINGS = {
    "greedy": Sampling(top_logprobs=3),
    "seeded": Sampling(temperature=0.8, seed=7, top_p=0.95, repeat_penalty=1.1, top_logprobs=3),
}


@dataclass(slots=True, kw_only=True)
class Kills:
    """Kills workers at random, and keeps what came of it."""

    every: int
    """Tokens from one kill to the next."""
    chance: random.Random
    count: int = 0
    steps: int = 0
    """That were compared."""
    replays_us: list[float] = field(default_factory=list)
    """Of each place of each generation, per loss."""
    problems: list[str] = field(default_factory=list)

    async def compare(self, route: Route, prompt: Sequence[int], name: str, sampling: Sampling) -> None:
        """One generation in peace and one that is disturbed, by tokens, bytes and log-probabilities."""
        expected = [step async for step in route.generate(prompt, max_tokens=TOKENS, sampling=sampling)]
        generation = route.generate(prompt, max_tokens=TOKENS, sampling=sampling)
        steps = await self._disturb(route, generation)
        self.steps += len(steps)
        if steps != expected:
            self.problems.append(
                f"{name}: another text after kills, from token {_first_difference(steps, expected)}"
            )
        self.replays_us += [
            stage.replay_us / stage.replays for stage in generation.record.stages if stage.replays
        ]

    async def _disturb(self, route: Route, generation: Generation) -> list[Step]:
        steps = []
        async for step in generation:
            steps.append(step)
            if step.index % self.every == 0 and step.finish_reason is None:
                await self._kill(self.chance.choice(route.workers))
        return steps

    async def _kill(self, worker: Worker) -> None:
        os.kill(worker.pid, signal.SIGKILL)
        await worker.wait_for_end()
        self.count += 1


async def replayed_route(model: Path, every: int = 1, cache_dir: Path | None = None, seed: int = 1) -> Figure:
    """Three workers, and SIGKILL to a random one after each token, or each `every`-th: greedy and seeded, and
    again without rows that are kept."""
    kills = Kills(every=every, chance=random.Random(seed))
    await _run(kills, model, cache_dir, KEPT, every)
    await _run(kills, model, cache_dir, NOT_KEPT, 8 * every)
    return Figure(
        name="route replayed",
        promise="the text goes on with the same tokens and the same bits of their log-probabilities",
        values={
            "kills": kills.count,
            "tokens_compared": kills.steps,
            "back_after_ms_p50": round(percentile(kills.replays_us, 50) / 1e3, 1),
            "back_after_ms_max": round(max(kills.replays_us) / 1e3, 1),
        },
        problems=tuple(kills.problems),
    )


async def _run(kills: Kills, model: Path, cache_dir: Path | None, replay: ReplaySettings, every: int) -> None:
    specs = [
        ShardSpec(
            str(model), layers=layers, recipe=RECIPE, cache_dir=None if cache_dir is None else str(cache_dir)
        )
        for layers in pairwise(CUTS)
    ]
    kills.every = every
    async with Route.start(specs, settings=WorkerSettings(restart=AT_ONCE), replay=replay) as route:
        short = await route.tokenize(PROMPT)
        for name, sampling in SAMPLINGS.items():
            await kills.compare(route, short, name, sampling)
        if not replay.memory_bytes:
            await kills.compare(route, short * 20, "long prompt", SAMPLINGS["seeded"])


def _first_difference(steps: Sequence[Step], expected: Sequence[Step]) -> int:
    same = (one == other for one, other in zip(steps, expected, strict=False))
    return next((index for index, is_same in enumerate(same) if not is_same), min(len(steps), len(expected)))
