"""What does it cost to divide a model, and how does that compare with llama.cpp's own division over RPC?

Greedy decode of one session from the same prompt: unsplit in process, through two and three supervised
stages, and by llama.cpp's library with its layers on two ggml RPC servers. Every stage and every server has
the same number of threads; one computes after the other. Same file, same context; the sides take turns. What
is timed begins with the first token: the prefill is left out.

    make bench BENCH=stages
    PYTHONPATH=tests python bench/stages.py MODEL [--rounds 5] [--threads 1,2] [--tokens 64]
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from functools import partial

from decode import PROMPT, add_options, n_tokens
from gguf_worker import Recipe
from gguf_worker.supervision.environment import default_environment
from kit import build, ours
from kit.library import Library
from kit.models import Model, models, settings_of
from kit.program import Options, run
from kit.report import Ratio, Report, Section, Side
from kit.rpc import rpc_servers
from kit.speeds import Decode, Speeds

KINDS = ("demo", "1b-q4_0")
SERVERS = 2
LIBRARY = "unsplit in process"
TWO = "our two stages"
THREE = "our three stages"
TWO_TOGETHER = "our two stages on one processor"
RPC = "two RPC servers"
RPC_GIVING_WAY = "two RPC servers, giving way"
NOTES = (
    "an RPC server keeps weights as they are in the file; in process and in our stages the library repacks "
    "some types (Q4_0 is one) into its own layouts, so over RPC other tokens may be drawn",
)
NOTE_TOGETHER = (
    "on one processor: what a machine loses when its processors take turns, each asleep while the other one "
    "computes, is not lost there; nobody is kept there by default, because stages compute at the same time "
    "where there is something to do for all"
)
GIVING_WAY = default_environment(gives_way=True)
NOTE_GIVING_WAY = (
    "giving way: the servers' OpenMP threads spin as shortly as those of our stages do, which is not their "
    f"own default: {', '.join(f'{name}={value}' for name, value in GIVING_WAY.items())}"
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
        question="What does it cost to divide a model, and how does that compare with llama.cpp's own "
        "division over RPC?",
        sections=tuple(sections),
        settings=settings,
        problems=tuple(problems),
    )


async def _section(options: Options, model: Model, threads: int, tokens: int) -> tuple[Section, list[str]]:
    recipe = Recipe(n_threads=threads)
    places: dict[str, dict[str, int]] = {}
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        two = await enter(ours.stages(model.path, 2, recipe))
        three = await enter(ours.stages(model.path, 3, recipe))
        library = await enter(Library(model.path, threads=threads))
        sides: dict[str, Decode] = {
            LIBRARY: library.decode,
            TWO: partial(ours.decode, two),
            THREE: partial(ours.decode, three),
        }
        if threads == 1 and hasattr(os, "sched_setaffinity"):
            together = await enter(ours.stages(model.path, 2, recipe))
            ours.keep_on_one_processor(together)
            sides[TWO_TOGETHER] = partial(ours.decode, together)
        for name in (RPC, RPC_GIVING_WAY)[: 1 + (threads > 1)]:
            environment = GIVING_WAY if name == RPC_GIVING_WAY else {}
            addresses = await enter(rpc_servers(SERVERS, threads=threads, environment=environment))
            divided = await enter(Library(model.path, threads=threads, rpc=addresses))
            sides[name], places[name] = divided.decode, divided.layers
        speeds = Speeds(await two.tokenize(PROMPT), tokens)
        found = await speeds.measure(sides, rounds=options.rounds)
        cuts = [[list(spec.layers) for spec in await ours.specs(model.path, n, recipe)] for n in (2, 3)]
    title = f"{model.name}, {threads} thread{'s' * (threads > 1)}"
    differences = speeds.differences(LIBRARY)
    section = Section(
        title=title,
        unit="tokens/s",
        sides=tuple(found.values()),
        ratios=_ratios(found),
        facts={
            "prompt tokens": len(speeds.prompt),
            "decoded tokens": tokens,
            "layers of our stages": cuts,
            "layers of the RPC servers, the head counts as one": places,
            "drew other tokens": differences or "none",
            "of a token, ms": speeds.token_ms(),
            "first token, ms": speeds.first_token_ms(),
        },
        notes=(*NOTES, NOTE_TOGETHER if threads == 1 else NOTE_GIVING_WAY),
    )
    return section, [f"{title}: {name}: {differences[name]}" for name in (TWO, THREE) if name in differences]


def _ratios(found: dict[str, Side]) -> tuple[Ratio, ...]:
    ratios = [
        Ratio(ours=found[TWO], peer=found[LIBRARY], wanted=0.95, floor=0.93),
        Ratio(ours=found[THREE], peer=found[LIBRARY], wanted=0.93, floor=0.90),
        Ratio(ours=found[TWO], peer=found[RPC], wanted=1.12),
    ]
    if TWO_TOGETHER in found:
        ratios.append(Ratio(ours=found[TWO_TOGETHER], peer=found[LIBRARY]))
    if RPC_GIVING_WAY in found:
        ratios.append(Ratio(ours=found[TWO], peer=found[RPC_GIVING_WAY]))
    return tuple(ratios)


if __name__ == "__main__":
    run("stages", __doc__, measure, add=add_options)
