"""Our side: supervised workers, in as many stages as wanted."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import gguf_worker
from gguf_worker import Recipe, Route, ShardSpec
from gguf_worker.cli.division import divide


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """One greedy generation, timed by its reader."""

    tokens: tuple[int, ...]
    """Drawn ones; the first comes from the prefill."""
    first_s: float
    """From the begin to the first token: the prefill."""
    rest_s: float
    """From the first token to the last one."""

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
    async for step in route.generate(prompt, max_tokens=n_tokens + 1):
        last = time.perf_counter()
        first = first if tokens else last
        tokens.append(step.token)
    return Decoded(tokens=tuple(tokens), first_s=first - began, rest_s=last - first)
