"""Our side: supervised workers, in as many stages as wanted."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

import gguf_worker
from gguf_worker import Recipe, Route, ShardSpec
from gguf_worker.cli.division import divide
from gguf_worker.generation import GenerationRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """One greedy generation, timed by its reader."""

    tokens: tuple[int, ...]
    """Drawn ones; the first comes from the prefill."""
    first_s: float
    """From the begin to the first token: the prefill."""
    rest_s: float
    """From the first token to the last one."""
    token_ms: Mapping[str, float] = field(default_factory=dict)
    """Where the time of a token behind the first one goes, where that is known."""

    @property
    def tokens_per_s(self) -> float:
        """Of the decode alone."""
        return (len(self.tokens) - 1) / self.rest_s


async def specs(model: Path, n_stages: int, recipe: Recipe) -> list[ShardSpec]:
    """As `serve --shards` cuts it."""
    whole = ShardSpec(model=str(model), recipe=recipe)
    found = await gguf_worker.inspect(str(model))
    return await divide(whole, found, (0, found.n_layer), n_shards=n_stages)


@asynccontextmanager
async def stages(model: Path, n_stages: int, recipe: Recipe) -> AsyncIterator[Route]:
    """A local route of so many stages, with what a user gets by default but for the recipe."""
    async with Route.start(await specs(model, n_stages, recipe)) as route:
        yield route


async def decode(route: Route, prompt: Sequence[int], n_tokens: int) -> Decoded:
    """Generates `n_tokens` after the one that the prefill gives. Random weights may end a text early, which
    the caller sees in the number of tokens."""
    began = time.perf_counter()
    first = last = began
    tokens: list[int] = []
    spent = _Spent()
    generation = route.generate(prompt, max_tokens=n_tokens + 1)
    async for step in generation:
        last = time.perf_counter()
        if not tokens:
            first, spent = last, _Spent.of(generation.record)
        tokens.append(step.token)
    rest_s = last - first
    token_ms = spent.until(generation.record, rest_s, len(tokens) - 1)
    return Decoded(tokens=tuple(tokens), first_s=first - began, rest_s=rest_s, token_ms=token_ms)


def keep_on_one_processor(route: Route) -> None:
    """All workers of the route, on the first processor that this process may use. Linux only."""
    (processor, *_) = sorted(os.sched_getaffinity(0))
    for worker in route.workers:
        for thread in psutil.Process(worker.pid).threads():
            os.sched_setaffinity(thread.id, {processor})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spent:
    """Of all stages so far, in microseconds."""

    computing: int = 0
    waiting: int = 0
    hops: int = 0

    @classmethod
    def of(cls, record: GenerationRecord) -> _Spent:
        stages = record.stages
        return cls(
            computing=sum(stage.compute_us for stage in stages),
            waiting=sum(stage.queue_us for stage in stages),
            hops=sum(stage.hop_us for stage in stages),
        )

    def until(self, record: GenerationRecord, elapsed_s: float, n_tokens: int) -> dict[str, float]:
        """Milliseconds of each of so many tokens that took `elapsed_s`."""
        now = _Spent.of(record)
        parts = {
            "computing": now.computing - self.computing,
            "waiting in the worker": now.waiting - self.waiting,
            "on the way there and back": now.hops - self.hops,
        }
        parts["between tokens"] = round(1e6 * elapsed_s) - sum(parts.values())
        return {name: round(us / 1e3 / max(1, n_tokens), 3) for name, us in parts.items()}
