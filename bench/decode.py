"""How fast does one shard decode, beside llama.cpp in process and behind its own server?

Greedy decode of one session from the same prompt: llama.cpp through its own calls in a process that does
nothing else, one supervised shard through its pipe, llama-server's HTTP stream, and our own HTTP stream. Same
file, same threads, same context; the sides take turns. What is timed begins with the first token: the prefill
is left out.

    make bench BENCH=decode
    PYTHONPATH=tests python bench/decode.py MODEL [--rounds 5] [--threads 1,2] [--tokens 64]
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

from gguf_worker import Recipe
from kit import build, ours
from kit.library import Library
from kit.models import Model, models, settings_of
from kit.program import Options, run
from kit.report import Ratio, Report, Section
from kit.served import Served, Streamed
from kit.server import DIFFERENCES, LlamaServer
from kit.speeds import Speeds
from kit.threads import add_threads

PROMPT = "The first rule of a good workshop is that every tool has its place, because"
KINDS = ("demo", "1b-q4_0", "1b-q8_0")
TINY_TOKENS = 8

LIBRARY = "in process"
SHARD = "our one shard"
SERVER = "llama-server, HTTP"
SERVED = "ours, HTTP"


def n_tokens(options: Options, kind: str) -> int:
    """Tokens of a turn: less of the large models, which take longer for each."""
    if options.is_tiny:
        return TINY_TOKENS
    tokens: int = options.given.tokens
    return tokens if kind == "demo" else max(1, tokens // 2)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_threads(parser)
    parser.add_argument(
        "--tokens", type=int, default=64, help="tokens of a turn; half as many of the large models (64)"
    )


async def measure(options: Options) -> Report:
    found = models(options, *KINDS)
    sections, problems = [], []
    for kind, model in zip(KINDS, found, strict=True):
        for threads in options.given.threads:
            section, wrong = await _section(options, model, threads, n_tokens(options, kind))
            sections.append(section)
            problems += wrong
    settings = {"models": settings_of(found), "rounds": options.rounds, "peers": build.describe()}
    return Report(
        question="How fast does one shard decode, beside llama.cpp in process and behind its own server?",
        sections=tuple(sections),
        settings=settings,
        problems=tuple(problems),
    )


async def _section(options: Options, model: Model, threads: int, tokens: int) -> tuple[Section, list[str]]:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        route = await enter(ours.stages(model.path, 1, Recipe(n_threads=threads)))
        library = await enter(Library(model.path, threads=threads))
        server = await enter(LlamaServer(model.path, threads=threads))
        served = await enter(Served(model.path, threads=threads))
        speeds = Speeds(await route.tokenize(PROMPT), tokens)
        texts: list[Streamed] = []
        sides = await speeds.measure(
            {
                LIBRARY: library.decode,
                SHARD: partial(ours.decode, route),
                SERVER: server.decode,
            },
            further={SERVED: _text_turn(partial(served.decode, speeds.prompt, tokens), texts)},
            rounds=options.rounds,
        )
        expected = await route.detokenize(speeds.drawn[LIBRARY].tokens)
    title = f"{model.name}, {threads} thread{'s' * (threads > 1)}"
    differences = speeds.differences(LIBRARY)
    problems = [f"{title}: {SHARD}: {differences[SHARD]}"] if SHARD in differences else []
    if texts[-1].n_tokens != tokens + 1 or texts[-1].text.encode() != expected:
        problems.append(f"{title}: {SERVED}: another text than in process")
    section = Section(
        title=title,
        unit="tokens/s",
        sides=tuple(sides.values()),
        ratios=(
            Ratio(ours=sides[SHARD], peer=sides[LIBRARY], wanted=0.97, floor=0.95),
            Ratio(ours=sides[SHARD], peer=sides[SERVER], wanted=1.0),
            Ratio(ours=sides[SERVED], peer=sides[SERVER]),
        ),
        facts={
            "prompt tokens": len(speeds.prompt),
            "decoded tokens": tokens,
            "drew other tokens": differences or "none",
            "of a token, ms": speeds.token_ms(),
            "first token, ms": {**speeds.first_token_ms(), SERVED: round(1000 * texts[-1].first_s, 2)},
        },
        notes=DIFFERENCES,
    )
    return section, problems


def _text_turn(
    decode: Callable[[], Awaitable[Streamed]], texts: list[Streamed]
) -> Callable[[], Awaitable[float]]:
    """A turn that keeps the text."""

    async def once() -> float:
        texts.append(await decode())
        return texts[-1].tokens_per_s

    return once


if __name__ == "__main__":
    run("decode", __doc__, measure, add=add_options)
