"""`gguf-worker run`: text through a route of supervised workers."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from gguf_worker import Generation, Recipe, Route, ShardSpec, Timings, Utf8Stream, Worker
from gguf_worker.cli.errors import EXIT_FAILED, CommandError
from gguf_worker.cli.inspect import InspectConfig, look_at
from gguf_worker.cli.layers import Range, even_ranges, ranges_of_cuts
from gguf_worker.cli.progress import display
from gguf_worker.cli.text import print_json, print_table, rate, show_rate, size


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    model: str
    prompt: str
    max_tokens: int
    n_shards: int
    cuts: tuple[int, ...] | None
    """Where to cut; None divides evenly into `n_shards`."""
    threads: int
    n_ctx: int
    engine: str
    cache_dir: str | None
    json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReport:
    """One worker after the generation; memory in bytes."""

    layers: Range
    pid: int
    owned_bytes: int
    rss_bytes: int
    llama_commit: str
    tokens_per_s: float | None
    """Rows a second while this worker computed: its own speed, without the time it waited for others."""


async def run(config: RunConfig) -> None:
    """Starts the workers, streams the text, shows the workers, stops them."""
    began = time.monotonic()
    shards = await divide(config)
    labels = [f"layers {start}:{end}" for start, end in (shard.layers for shard in shards)]
    async with AsyncExitStack() as stack:
        with display(labels, silent=config.json) as shown:
            route = await stack.enter_async_context(Route.start(shards, on_progress=shown.update))
        load_s = time.monotonic() - began
        generation = await start_generation(route, config)
        text = await stream(generation, silent=config.json)
        reports = [await report(worker) for worker in route.workers]
    if config.json:
        print_json(to_json(text, generation, reports, load_s))
    else:
        show_workers(generation.timings, reports, load_s)


async def divide(config: RunConfig) -> list[ShardSpec]:
    """One specification per shard. A worker is asked for the model's layers and digest; every shard must then
    have that digest, so that no two of them load different files."""
    found = await look_at(
        InspectConfig(model=config.model, engine=config.engine, cache_dir=config.cache_dir, json=config.json)
    )
    if not found.supported:
        raise CommandError(f"{config.model} cannot be run: {found.reason}", exit_status=EXIT_FAILED)
    if config.cuts is not None:
        ranges = ranges_of_cuts(config.cuts, found.n_layer)
    else:
        ranges = even_ranges(config.n_shards, found.n_layer, found.cut_period)
    return [
        ShardSpec(
            model=config.model,
            layers=layers,
            recipe=recipe_of(config),
            artifact=found.artifact,
            engine=config.engine,
            max_sessions=1,
            cache_dir=config.cache_dir,
        )
        for layers in ranges
    ]


def recipe_of(config: RunConfig) -> Recipe:
    """The default recipe for the context that was asked for: batches are never larger than it."""
    usual = Recipe()
    return Recipe(
        n_ctx=config.n_ctx,
        n_batch=min(usual.n_batch, config.n_ctx),
        n_ubatch=min(usual.n_ubatch, config.n_ctx),
        n_threads=config.threads,
    )


async def start_generation(route: Route, config: RunConfig) -> Generation:
    """A generation from the prompt. Raises CommandError where the prompt is empty or does not fit."""
    prompt = await route.tokenize(config.prompt)
    if not prompt:
        raise CommandError(
            "the prompt has no tokens, and this model adds none of its own",
            remedy="give --prompt some text",
            exit_status=EXIT_FAILED,
        )
    if len(prompt) > config.n_ctx:
        raise CommandError(
            f"the prompt has {len(prompt)} tokens and the context holds {config.n_ctx}",
            remedy=f"shorten it or give --ctx {-(-(len(prompt) + config.max_tokens) // 256) * 256}",
            exit_status=EXIT_FAILED,
        )
    return route.generate(prompt, max_tokens=config.max_tokens)


async def stream(generation: Generation, *, silent: bool) -> str:
    """Writes the text to stdout as it comes, unless silent, and returns all of it."""
    decoder = Utf8Stream()
    parts: list[str] = []
    async for step in generation:
        parts.append(decoder.feed(step.text_bytes))
        if not silent:
            print(parts[-1], end="", flush=True)
    parts.append(decoder.finish())
    if not silent:
        print(parts[-1], flush=True)
    return "".join(parts)


async def report(worker: Worker) -> ShardReport:
    """What one worker holds and occupies now."""
    health = await worker.health()
    return ShardReport(
        layers=(worker.identity.start, worker.identity.end),
        pid=worker.pid,
        owned_bytes=worker.ownership.bytes,
        rss_bytes=health.rss_bytes,
        llama_commit=worker.hello.build.library_commit,
        tokens_per_s=rate(health.rows, health.compute_us / 1e6),
    )


def to_json(
    text: str, generation: Generation, reports: Sequence[ShardReport], load_s: float
) -> dict[str, object]:
    timings = generation.timings
    return {
        "text": text,
        "tokens": generation.tokens,
        "finish_reason": generation.finish_reason,
        "shards": [
            {
                "layers": list(shard.layers),
                "pid": shard.pid,
                "owned_bytes": shard.owned_bytes,
                "rss_bytes": shard.rss_bytes,
                "llama_commit": shard.llama_commit,
            }
            for shard in reports
        ],
        "timings": {
            "load_s": load_s,
            "prefill_tokens_per_s": timings.prefill_tokens_per_s,
            "decode_tokens_per_s": timings.decode_tokens_per_s,
        },
    }


def show_workers(timings: Timings, reports: Sequence[ShardReport], load_s: float) -> None:
    """The timings and the table of workers, on stderr."""
    print(
        f"loaded in {load_s:.1f} s, prefill {timings.prefill_tokens_per_s:.1f} and "
        f"decode {timings.decode_tokens_per_s:.1f} tokens/s through {len(reports)} workers",
        file=sys.stderr,
    )
    rows = [
        (
            f"{shard.layers[0]}:{shard.layers[1]}",
            str(shard.pid),
            size(shard.owned_bytes),
            size(shard.rss_bytes),
            show_rate(shard.tokens_per_s),
        )
        for shard in reports
    ]
    print_table(("layers", "pid", "owned", "resident", "tokens/s"), rows)
