"""`gguf-worker run`: text through a route of supervised workers."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from gguf_worker import (
    Generation,
    Recipe,
    Route,
    Sampling,
    ShardSpec,
    Step,
    Utf8Stream,
    Worker,
)
from gguf_worker.cli.division import divide, look_at_model
from gguf_worker.cli.errors import EXIT_FAILED, CommandError
from gguf_worker.cli.layers import Range
from gguf_worker.cli.options import HostOptions, round_up
from gguf_worker.cli.progress import display
from gguf_worker.cli.text import harmless, print_json, print_table, rate, show_rate, size


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    model: str
    prompt: str
    max_tokens: int
    n_shards: int
    cuts: tuple[int, ...] | None
    """Where to cut; None divides by bytes into `n_shards`."""
    recipe: Recipe
    sampling: Sampling
    host: HostOptions
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
    shards = await shards_of(config)
    labels = [f"layers {start}:{end}" for start, end in (shard.layers for shard in shards)]
    async with AsyncExitStack() as stack:
        with display(labels, silent=config.json) as shown:
            route = await stack.enter_async_context(Route.start(shards, on_progress=shown.update))
        load_s = time.monotonic() - began
        generation = await start_generation(route, config)
        text, steps = await stream(generation, silent=config.json)
        reports = [await report(worker) for worker in route.workers]
    if config.json:
        print_json(to_json(text, steps, generation, reports, load_s))
    else:
        show_workers(generation, reports, load_s)


async def shards_of(config: RunConfig) -> list[ShardSpec]:
    """One specification per shard. A worker is asked for the model's layers and digest; every shard must then
    have that digest, so that no two of them load different files."""
    found = await look_at_model(config.model, config.host, silent=config.json)
    whole = config.host.spec(config.model, config.recipe, artifact=found.artifact, sessions=1)
    return await divide(whole, found, (0, found.n_layer), n_shards=config.n_shards, cuts=config.cuts)


async def start_generation(route: Route, config: RunConfig) -> Generation:
    """A generation from the prompt. Raises as `prompt_tokens`."""
    prompt = await prompt_tokens(
        route,
        config.prompt,
        n_ctx=config.recipe.n_ctx,
        max_tokens=config.max_tokens,
        remedy="shorten it or give",
    )
    return route.generate(prompt, max_tokens=config.max_tokens, sampling=config.sampling)


async def prompt_tokens(route: Route, text: str, *, n_ctx: int, max_tokens: int, remedy: str) -> list[int]:
    """The tokens of a prompt. Raises CommandError where there is none, and where they do not fit: `remedy` is
    what to do, up to the `--ctx-size` that would hold them."""
    prompt = await route.tokenize(text)
    if not prompt:
        raise CommandError(
            "the prompt has no tokens, and this model adds none of its own",
            remedy="give --prompt some text",
            exit_status=EXIT_FAILED,
        )
    if len(prompt) > n_ctx:
        raise CommandError(
            f"the prompt has {len(prompt)} tokens and the context holds {n_ctx}",
            remedy=f"{remedy} --ctx-size {round_up(len(prompt) + max_tokens)}",
            exit_status=EXIT_FAILED,
        )
    return prompt


async def stream(generation: Generation, *, silent: bool) -> tuple[str, list[Step]]:
    """Writes the text to stdout as it comes, unless silent, and returns all of it and its steps.

    A model may say what steers a terminal; in a pipe or a file its text stays as it is.
    """
    shown = harmless if sys.stdout.isatty() else str
    decoder = Utf8Stream()
    parts: list[str] = []
    steps: list[Step] = []
    async for step in generation:
        steps.append(step)
        parts.append(decoder.feed(step.text_bytes))
        if not silent:
            print(shown(parts[-1]), end="", flush=True)
    parts.append(decoder.finish())
    if not silent:
        print(shown(parts[-1]), flush=True)
    return "".join(parts), steps


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
    text: str, steps: Sequence[Step], generation: Generation, reports: Sequence[ShardReport], load_s: float
) -> dict[str, object]:
    timings = generation.timings
    asked = generation.sampling.top_logprobs > 0
    return {
        "text": text,
        "tokens": generation.tokens,
        "finish_reason": generation.finish_reason,
        "replays": generation.record.replays,
        **({"logprobs": [candidates(step) for step in steps]} if asked else {}),
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


def candidates(step: Step) -> dict[str, object]:
    """A token that was drawn, and the most likely ones, best first."""
    return {
        "token": step.token,
        "logprob": step.logprob,
        "top": [
            {
                "token": candidate.token,
                "logprob": candidate.logprob,
                "text": candidate.text.decode(errors="replace"),
            }
            for candidate in step.top
        ],
    }


def show_workers(generation: Generation, reports: Sequence[ShardReport], load_s: float) -> None:
    """The timings and the table of workers, on stderr."""
    timings, replays = generation.timings, generation.record.replays
    print(
        f"loaded in {load_s:.1f} s, prefill {timings.prefill_tokens_per_s:.1f} and "
        f"decode {timings.decode_tokens_per_s:.1f} tokens/s through {len(reports)} workers"
        + (f", of which {replays} died and were replaced" if replays else ""),
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
