"""How many tokens a second do eight sessions at once get, beside llama-server with eight slots?

Eight greedy texts behind eight prompts: by llama.cpp's library in process with all of them in one batch, by
llama-server with eight slots, through one supervised shard, through our own HTTP, and one text after the
other through the same shard. With two threads in all, also through two stages of one thread each, which work
on different sessions at the same time. The cut is the one that `serve --shards 2` makes; where the times of
the stages say that another one would be better, that is measured as well. Same file, same context that all
sessions share; the sides take turns. What is counted is all tokens drawn over the whole time, from the first
request to the last token: eight short prefills are in it on every side.

    make bench BENCH=sessions
    PYTHONPATH=tests python bench/sessions.py MODEL [--rounds 3] [--tokens 64]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

import anyio

from decode import n_tokens
from gguf_worker import Recipe, Route, ShardSpec
from gguf_worker.generation import GenerationRecord
from kit import build, ours
from kit.library import Library
from kit.models import Model, models, settings_of
from kit.pipeline import Stage, at_once, best_cut
from kit.program import Options, run
from kit.report import Ratio, Report, Section, Side, sides_of
from kit.rounds import Turn, in_turns
from kit.served import Served
from kit.server import DIFFERENCES, LlamaServer
from kit.speeds import parting
from prefill import cut_in_two

KINDS = ("demo", "1b-q4_0")
THREADS = (1, 2)
"""Of a side, in all."""
PROMPTS = (
    "The first rule of a good workshop is that every tool has its place, because",
    "Once upon a time there was a clockmaker who lived at the edge of a forest, and",
    "The water cycle begins when the sun warms the surface of the sea, so that",
    "To bake bread at home you need flour, water, salt and some patience. First,",
    "The history of the railway is a history of small improvements, beginning with",
    "A letter to a friend who has moved to another city should begin with",
    "The difference between weather and climate is a matter of time:",
    "In the middle of the night the lighthouse keeper heard a sound that",
)
"""The demo model goes on behind each of them."""
N_SESSIONS = len(PROMPTS)
LIBRARY = "in process, one batch"
SERVER = "llama-server, HTTP"
SHARD = "our one shard"
SERVED = "ours, HTTP"
TWO = "our two stages, 1 thread each"
SEQUENTIAL = "our one shard, one after the other"
NOTES = (
    *DIFFERENCES,
    f"every side has room for {N_SESSIONS} sessions (ours by `--parallel {N_SESSIONS}`; the default is 4), "
    "which share the KV cells of one context",
    "what shares a batch can change a result within bounds, and here also which rows do is chance: only the "
    "texts that are drawn alone must be the same",
)

Texts = Sequence[tuple[int, ...]]
Sessions = Callable[[Sequence[Sequence[int]], int], Awaitable[tuple[float, Texts]]]
"""Draws so many tokens behind each prompt after the one that its prefill gives: seconds for all of it, and
the tokens, as the kit's peers do it."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokens", type=int, default=64, help="of each text; half as many of the large models (64)"
    )


# ---- our sides ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Ours:
    """Our route, and what its stages did the last time."""

    route: Route
    decode_only: list[list[tuple[int, int]]] = field(default_factory=list)
    """Of each text and stage: forwards behind the prefill, and the rows of the steps that they were in."""
    busy_s: dict[str, float] = field(default_factory=dict)
    """Seconds that each stage computed."""
    elapsed_s: float = 0.0

    async def together(self, prompts: Sequence[Sequence[int]], n_tokens: int) -> tuple[float, Texts]:
        """All texts at once."""
        found: dict[int, tuple[int, ...]] = {}

        async def one(index: int, prompt: Sequence[int]) -> None:
            found[index] = await self._text(prompt, n_tokens)

        await self._begin()
        began = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for index, prompt in enumerate(prompts):
                tasks.start_soon(one, index, prompt)
        await self._end(time.perf_counter() - began)
        return self.elapsed_s, [found[index] for index in range(len(prompts))]

    async def one_by_one(self, prompts: Sequence[Sequence[int]], n_tokens: int) -> tuple[float, Texts]:
        """One text after the other."""
        await self._begin()
        began = time.perf_counter()
        texts = [await self._text(prompt, n_tokens) for prompt in prompts]
        await self._end(time.perf_counter() - began)
        return self.elapsed_s, texts

    async def _text(self, prompt: Sequence[int], n_tokens: int) -> tuple[int, ...]:
        generation = self.route.generate(prompt, max_tokens=n_tokens + 1)
        prefill: list[tuple[int, int]] = []
        async for step in generation:
            if step.index == 0:
                prefill = _steps_of(generation.record)
        self.decode_only.append(
            [
                (forwards - first[0], rows - first[1])
                for first, (forwards, rows) in zip(prefill, _steps_of(generation.record), strict=True)
            ]
        )
        return tuple(generation.tokens)

    async def _begin(self) -> None:
        self.decode_only.clear()
        self.busy_s = await self._computed_s()

    async def _end(self, elapsed_s: float) -> None:
        self.elapsed_s = elapsed_s
        self.busy_s = {
            label: seconds - self.busy_s[label] for label, seconds in (await self._computed_s()).items()
        }

    async def _computed_s(self) -> dict[str, float]:
        """Seconds that each stage has computed since it was started."""
        return {worker.label: (await worker.health()).compute_us / 1e6 for worker in self.route.workers}

    # ---- what was seen ----

    @property
    def rows_of_a_step(self) -> dict[str, float]:
        """Of each stage: how many rows a step had, as a text that decodes meets it, in the mean."""
        found = {}
        for worker, stages in zip(self.route.workers, zip(*self.decode_only, strict=True), strict=True):
            forwards, rows = (sum(counts) for counts in zip(*stages, strict=True))
            found[worker.label] = round(rows / forwards, 2)
        return found

    def stages(self) -> list[Stage]:
        """What each one computed the last time."""
        return [
            Stage(layers=worker.layers, compute_s=self.busy_s[worker.label]) for worker in self.route.workers
        ]

    def facts(self) -> dict[str, object]:
        """What the stages did the last time."""
        busy = {label: round(seconds, 3) for label, seconds in self.busy_s.items()}
        return {
            "rows of a decode step, mean": self.rows_of_a_step,
            "computing, s": busy,
            "passed, s": round(self.elapsed_s, 3),
            "stages that computed at the same time, mean": round(at_once(self.busy_s, self.elapsed_s), 2),
        }


def _steps_of(record: GenerationRecord) -> list[tuple[int, int]]:
    """Of each stage: forwards so far, and the rows of the steps that they were in."""
    return [(stage.forwards, stage.batch_rows) for stage in record.stages]


# ---- what is measured ---------------------------------------------------------------------------


async def measure(options: Options) -> Report:
    found = models(options, *KINDS)
    sections, problems = [], []
    for kind, model in zip(KINDS, found, strict=True):
        for threads in THREADS:
            section, wrong = await _section(options, model, threads, n_tokens(options, kind))
            sections.append(section)
            problems += wrong
    settings = {
        "models": settings_of(found),
        "rounds": options.rounds,
        "sessions": N_SESSIONS,
        "peers": build.describe(),
    }
    return Report(
        question="How many tokens a second do eight sessions at once get, beside llama-server with eight "
        "slots?",
        sections=tuple(sections),
        settings=settings,
        problems=tuple(problems),
    )


async def _section(options: Options, model: Model, threads: int, tokens: int) -> tuple[Section, list[str]]:
    routes: dict[str, Ours] = {}
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        routes[SHARD] = await _ours(stack, await _specs(model, n_stages=1, threads=threads))
        alone = Ours(routes[SHARD].route)
        prompts = [await alone.route.tokenize(text) for text in PROMPTS]
        if threads == 2:
            routes |= await _two_stages(stack, model, prompts, tokens)
        library = await enter(Library(model.path, threads=threads, max_sessions=N_SESSIONS))
        server = await enter(LlamaServer(model.path, threads=threads, slots=N_SESSIONS))
        served = await enter(Served(model.path, threads=threads, further=("--parallel", str(N_SESSIONS))))
        expected = [(await library.decode(prompt, tokens)).tokens for prompt in prompts]
        drawn: dict[str, Texts] = {}
        sides: dict[str, Sessions] = {
            LIBRARY: library.sessions,
            SERVER: server.sessions,
            **{name: one.together for name, one in routes.items()},
            SEQUENTIAL: alone.one_by_one,
        }
        turns = {name: _turn(name, draw, prompts, tokens, drawn) for name, draw in sides.items()}
        turns[SERVED] = _served_turn(served, prompts, tokens)
        values = await in_turns(turns, rounds=options.rounds, warm_up=0 if options.is_tiny else 1)
    found = sides_of(values)
    title = f"{model.name}, {N_SESSIONS} sessions, {threads} thread{'s' * (threads > 1)}"
    section = Section(
        title=title,
        unit="tokens/s of all sessions",
        sides=tuple(found.values()),
        ratios=_ratios(found),
        facts={
            "prompt tokens": [len(prompt) for prompt in prompts],
            "tokens of each text": tokens + 1,
            "texts that are others than alone in process": texts_that_differ(expected, drawn) or "none",
            **{f"{name}, last round": one.facts() for name, one in routes.items()},
        },
        notes=NOTES,
    )
    return section, [f"{title}: {problem}" for problem in what_is_wrong(expected, drawn)]


async def _specs(model: Model, *, n_stages: int, threads: int) -> list[ShardSpec]:
    specs = await ours.specs(model.path, n_stages, Recipe(n_threads=threads))
    return [replace(spec, max_sessions=N_SESSIONS) for spec in specs]


async def _ours(stack: AsyncExitStack, specs: Sequence[ShardSpec]) -> Ours:
    return Ours(await stack.enter_async_context(Route.start(specs)))


async def _two_stages(
    stack: AsyncExitStack, model: Model, prompts: Sequence[Sequence[int]], tokens: int
) -> dict[str, Ours]:
    """As they are cut, and also with a better cut where there is one."""
    specs = await _specs(model, n_stages=2, threads=1)
    found = {TWO: await _ours(stack, specs)}
    await found[TWO].together(prompts, tokens)
    first, last = found[TWO].stages()
    cut = best_cut(first, last)
    if cut != first.layers[1]:
        found[f"{TWO}, cut at {cut}"] = await _ours(stack, cut_in_two(specs, cut))
    return found


def _turn(
    name: str, draw: Sessions, prompts: Sequence[Sequence[int]], tokens: int, drawn: dict[str, Texts]
) -> Turn:
    """Tokens a second of all sessions; keeps the texts."""

    async def once() -> float:
        seconds, drawn[name] = await draw(prompts, tokens)
        return sum(map(len, drawn[name])) / seconds

    return once


def _served_turn(served: Served, prompts: Sequence[Sequence[int]], tokens: int) -> Turn:
    """The same of our own HTTP, which tells text and no tokens."""

    async def once() -> float:
        counts: list[int] = []

        async def one(prompt: Sequence[int]) -> None:
            counts.append((await served.decode(prompt, tokens)).n_tokens)

        began = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for prompt in prompts:
                tasks.start_soon(one, prompt)
        return sum(counts) / (time.perf_counter() - began)

    return once


# ---- what is made of it -------------------------------------------------------------------------


def _ratios(found: Mapping[str, Side]) -> tuple[Ratio, ...]:
    shard, server = found[SHARD], found[SERVER]
    ratios = [
        Ratio(ours=shard, peer=server, wanted=1.0),
        Ratio(ours=shard, peer=found[SEQUENTIAL]),
        Ratio(ours=shard, peer=found[LIBRARY]),
        Ratio(ours=found[SERVED], peer=server),
    ]
    if TWO in found:
        two = found[TWO]
        ratios.insert(1, Ratio(ours=two, peer=server, wanted=1.2))
        ratios += [Ratio(ours=two, peer=shard), Ratio(ours=two, peer=found[LIBRARY])]
    for name, side in found.items():
        if name.startswith(f"{TWO},"):
            ratios += [Ratio(ours=side, peer=server), Ratio(ours=side, peer=found[TWO])]
    return tuple(ratios)


def texts_that_differ(expected: Texts, drawn: Mapping[str, Texts]) -> dict[str, str]:
    """Of each side that drew other texts the last time: how many, and where the first one parts."""
    found = {}
    for name, texts in drawn.items():
        others = [index for index, text in enumerate(texts) if text != expected[index]]
        if others:
            first = others[0]
            where = parting(expected[first], texts[first])
            found[name] = f"{len(others)} of {len(texts)}; of text {first + 1} {where}"
    return found


def what_is_wrong(expected: Texts, drawn: Mapping[str, Texts]) -> list[str]:
    """Texts that were drawn alone must be those of the library alone, and none may end early."""
    others = texts_that_differ(expected, {SEQUENTIAL: drawn[SEQUENTIAL]})
    short = [name for name, texts in drawn.items() if list(map(len, texts)) != list(map(len, expected))]
    return [
        *(f"{name}: other texts: {what}" for name, what in others.items()),
        *(f"{name}: a text ended early" for name in short),
    ]


if __name__ == "__main__":
    run("sessions", __doc__, measure, rounds=3, add=add_options)
