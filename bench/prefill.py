"""How much faster is a long prompt when two stages work on it at the same time?

2,048 tokens up to the first token drawn: unsplit in process, through one supervised shard of one thread and
of two, through two stages of one thread each, in pieces of the usual size and in shorter ones, and by
llama.cpp's library with its layers on two ggml RPC servers of one thread each. The stages have different
pieces of the prompt at the same time, and so have the RPC servers. The cut is the one that `serve --shards 2`
makes; where the times of the stages say that another one would be better, that is measured as well. Same
file, same prompt, same context; the sides take turns.

    make bench BENCH=prefill
    PYTHONPATH=tests python bench/prefill.py MODEL [--rounds 3] [--tokens 2048]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from gguf_worker import Recipe, Route, ShardSpec
from gguf_worker.generation import GenerationRecord
from kit import build, ours
from kit.library import Library
from kit.models import Model, models, settings_of
from kit.pipeline import Stage, at_once, best_cut, ideal, ideal_of
from kit.program import Options, run
from kit.report import Ratio, Report, Section, Side, sides_of
from kit.rounds import Turn, in_turns
from kit.rpc import rpc_servers

KINDS = ("demo", "1b-q4_0")
TINY_TOKENS = 300
LIBRARY = "unsplit in process, 1 thread"
ONE = "our one shard, 1 thread"
WIDE = "our one shard, 2 threads"
TWO = "our two stages, 1 thread each"
RPC = "two RPC servers, 1 thread each"
SHORT = 64
SHORT_PIECES = f"{TWO}, pieces of {SHORT} rows"
MAY_DIFFER = (RPC, SHORT_PIECES)
"""Sides that compute in other layouts or in other pieces than the others."""
RECIPE = Recipe(n_threads=1)
PIECE = RECIPE.prefill_chunk or RECIPE.n_ubatch
"""Rows of the prompt that a stage has at once."""
TEXT = "The first rule of a good workshop is that every tool has its place, because "
NOTES = (
    "an RPC server keeps weights as they are in the file; in process and in our stages the library repacks "
    "some types (Q4_0 is one) into its own layouts, which are faster",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, default=2048, help="of the prompt (2048)")


@dataclass(slots=True)
class Prompt:
    """What each side is given, and what it made of it."""

    tokens: Sequence[int]
    drawn: dict[str, int] = field(default_factory=dict)
    """The token that each side drew behind it, the last time."""
    last: dict[str, GenerationRecord] = field(default_factory=dict)
    """Of each of our sides, of its last turn."""

    def through(self, name: str, route: Route) -> Turn:
        """Tokens per second of our side."""

        async def once() -> float:
            generation = route.generate(self.tokens, max_tokens=1)
            began = time.perf_counter()
            async for step in generation:
                self.drawn[name] = step.token
            elapsed_s = time.perf_counter() - began
            self.last[name] = generation.record
            return len(self.tokens) / elapsed_s

        return once

    def by(self, name: str, library: Library) -> Turn:
        """Tokens per second of llama.cpp's library."""

        async def once() -> float:
            found = await library.decode(self.tokens, 0)
            (self.drawn[name],) = found.tokens
            return len(self.tokens) / found.first_s

        return once


async def measure(options: Options) -> Report:
    found = models(options, *KINDS)
    sections, problems = [], []
    for model in found:
        section, wrong = await _section(options, model)
        sections.append(section)
        problems += wrong
    settings = {"models": settings_of(found), "rounds": options.rounds, "peers": build.describe()}
    return Report(
        question="How much faster is a long prompt when two stages work on it at the same time?",
        sections=tuple(sections),
        settings=settings,
        problems=tuple(problems),
    )


async def _section(options: Options, model: Model) -> tuple[Section, list[str]]:
    specs = await ours.specs(model.path, 2, RECIPE)
    async with AsyncExitStack() as stack:
        routes = await _routes(stack, model.path, specs)
        prompt = await _prompt(routes[TWO], TINY_TOKENS if options.is_tiny else options.given.tokens)
        cut = await _better_cut(prompt, routes[TWO])
        if cut is not None:
            routes[_cut_at(cut)] = await stack.enter_async_context(Route.start(cut_in_two(specs, cut)))
        library = await stack.enter_async_context(Library(model.path, threads=1))
        addresses = await stack.enter_async_context(rpc_servers(2, threads=1))
        divided = await stack.enter_async_context(Library(model.path, threads=1, rpc=addresses))
        turns = {LIBRARY: prompt.by(LIBRARY, library), RPC: prompt.by(RPC, divided)}
        turns |= {name: prompt.through(name, route) for name, route in routes.items()}
        sides = sides_of(await in_turns(turns, rounds=options.rounds, warm_up=0 if options.is_tiny else 1))
    section = Section(
        title=f"{model.name}, prompt of {len(prompt.tokens):,} tokens",
        unit="tokens/s",
        sides=tuple(sides.values()),
        ratios=_ratios(sides),
        facts={
            "layers of our stages": [list(spec.layers) for spec in specs],
            "layers of the RPC servers, the head counts as one": divided.layers,
            **_limits(prompt.last[TWO], len(prompt.tokens)),
            "best cut by these times": cut or specs[1].layers[0],
            "drew another token": _others(prompt.drawn) or "none",
        },
        notes=NOTES,
    )
    must = {name: token for name, token in prompt.drawn.items() if name not in MAY_DIFFER}
    return section, [f"{section.title}: {name} drew another token" for name in _others(must)]


async def _routes(stack: AsyncExitStack, model: Path, specs: Sequence[ShardSpec]) -> dict[str, Route]:
    enter = stack.enter_async_context
    return {
        ONE: await enter(ours.stages(model, 1, RECIPE)),
        WIDE: await enter(ours.stages(model, 1, replace(RECIPE, n_threads=2))),
        TWO: await enter(Route.start(specs)),
        SHORT_PIECES: await enter(ours.stages(model, 2, replace(RECIPE, prefill_chunk=SHORT))),
    }


async def _prompt(route: Route, n_tokens: int) -> Prompt:
    """As many tokens as wanted of a text that goes on and on."""
    some = await route.tokenize(TEXT)
    return Prompt(tokens=(some * (n_tokens // len(some) + 1))[:n_tokens])


# ---- what limits it -----------------------------------------------------------------------------


async def _better_cut(prompt: Prompt, route: Route) -> int | None:
    """Where to cut so that both stages take the same time; None where that is where they are cut."""
    await prompt.through(TWO, route)()
    first, last = _stages(prompt.last[TWO])
    cut = best_cut(first, last)
    return None if cut == first.layers[1] else cut


def _stages(record: GenerationRecord) -> list[Stage]:
    return [Stage(layers=layers_of(one.label), compute_s=one.compute_us / 1e6) for one in record.stages]


def layers_of(label: str) -> tuple[int, int]:
    """Of a stage that is named `layers 0:16`."""
    start, _, end = label.removeprefix("layers ").partition(":")
    return int(start), int(end)


def cut_in_two(specs: Sequence[ShardSpec], cut: int) -> list[ShardSpec]:
    """Two shards that are cut elsewhere than these two."""
    first, last = specs
    return [replace(first, layers=(0, cut)), replace(last, layers=(cut, last.layers[1]))]


def _cut_at(cut: int) -> str:
    return f"{TWO}, cut at {cut}"


def _limits(record: GenerationRecord, n_tokens: int) -> dict[str, object]:
    """What one turn's record says of the stages."""
    stages = _stages(record)
    n_pieces = -(-n_tokens // PIECE)
    busy = {one.label: one.compute_us / 1e6 for one in record.stages}
    assert record.time_to_first_token_us is not None, "a turn that counts has drawn its token"
    elapsed_s = record.time_to_first_token_us / 1e6
    return {
        "computing, waiting in the stage, on the way there and back, s": {
            one.label: [round(us / 1e6, 3) for us in (one.compute_us, one.queue_us, one.hop_us)]
            for one in record.stages
        },
        "stages that computed at the same time, mean": round(at_once(busy, elapsed_s), 2),
        "ideal of these stages": f"{ideal(stages):.2f} times one after the other",
        f"ideal with {n_pieces} pieces": f"{ideal_of(stages, n_pieces):.2f} times one after the other",
    }


def _others(drawn: Mapping[str, int]) -> list[str]:
    """Sides that drew another token than the library did."""
    return [name for name, token in drawn.items() if token != drawn[LIBRARY]]


def _ratios(sides: Mapping[str, Side]) -> tuple[Ratio, ...]:
    two = sides[TWO]
    others = [side for name, side in sides.items() if name.startswith(f"{TWO},")]
    return (
        Ratio(ours=two, peer=sides[LIBRARY], wanted=1.7),
        Ratio(ours=two, peer=sides[RPC], wanted=1.6),
        Ratio(ours=sides[ONE], peer=sides[LIBRARY]),
        Ratio(ours=two, peer=sides[WIDE]),
        *(Ratio(ours=side, peer=two) for side in others),
    )


if __name__ == "__main__":
    run("prefill", __doc__, measure, rounds=3, add=add_options)
