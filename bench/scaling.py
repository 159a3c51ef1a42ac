"""How do speed and memory go as stages, sessions and context grow?

Our side alone, on the demo model with one thread a stage: tokens per second and memory through one to six
stages, of one to sixteen sessions at once, and at 256 to 8,192 rows of context. There is no figure to reach;
what one more of each costs is given as a fact. The shard files of each number of stages are named by their
digests.

Stages and sessions are measured in turns. For each number of stages a turn has workers of its own, whose
start is not timed; for the sessions one worker, and then two, have room for all of them. The context is one
sequence that grows, once a round: it is filled to each depth and decodes there. Sequences are driven by hand
where their lengths must be right, so that no text ends early. Memory is the proportional set size of all
workers together (Linux; elsewhere what is each one's own): a page that several share counts once.

    make bench BENCH=scaling
    PYTHONPATH=tests python bench/scaling.py MODEL [--tokens 32] [--threads 1] [--rounds 3]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import linear_regression, median

import anyio
import psutil

from gguf_worker import Output, Recipe, Route, SessionChain
from kit import ours
from kit.models import Model, models, settings_of
from kit.program import Options, run
from kit.report import Ratio, Report, Section, Side, sides_of
from kit.rounds import in_turns, show_progress

PROMPT = "The first rule of a good workshop is that every tool has its place, because"
N_CTX = 4096
"""Where the context is not the question; a user's default."""
N_BATCH = Recipe().n_batch
"""The default, which may not be more than the context."""
MEGABYTE = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What grows, and how far."""

    model: Model
    rounds: int
    is_tiny: bool
    threads: int
    tokens: int
    """That are decoded by each sequence, behind the first one."""
    stages: tuple[int, ...] = (1, 2, 3, 4, 5, 6)
    sessions: tuple[int, ...] = (1, 2, 4, 8, 16)
    contexts: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192)

    @property
    def warm_up(self) -> int:
        return 0 if self.is_tiny else 1

    @asynccontextmanager
    async def route(
        self, n_stages: int = 1, *, n_ctx: int = N_CTX, max_sessions: int = 1
    ) -> AsyncIterator[Route]:
        """So many stages, with what a user gets by default but for these."""
        recipe = Recipe(n_ctx=n_ctx, n_batch=min(N_BATCH, n_ctx), n_threads=self.threads)
        specs = await ours.specs(self.model.path, n_stages, recipe)
        async with Route.start([replace(spec, max_sessions=max_sessions) for spec in specs]) as route:
            yield route


# ---- stages -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Seen:
    """What was noted beside the speeds, by the number of stages."""

    memory: dict[str, list[float]] = field(default_factory=dict)
    """Megabytes, one per turn."""
    tokens: dict[str, set[tuple[int, ...]]] = field(default_factory=dict)
    shards: dict[str, list[str]] = field(default_factory=dict)
    """Layers and sha256 of each stage's file."""


async def as_stages_grow(plan: Plan) -> tuple[list[Section], list[str]]:
    """Speed and memory, and what should not have been: other tokens."""
    seen = Seen()
    turns = {_counted(n, "stage"): partial(_through_stages, plan, n, seen) for n in plan.stages}
    rounds = plan.rounds
    speeds = sides_of(await in_turns(turns, rounds=rounds, warm_up=plan.warm_up))
    sizes = sides_of({name: seen.memory[name][-rounds:] for name in turns})
    sections = [
        Section(
            title="decode as stages grow",
            unit="tokens/s",
            sides=tuple(speeds.values()),
            ratios=_last_to_first(speeds),
            facts={
                "one more stage adds": f"{_slope(plan.stages, speeds):.3f} ms a token",
                "all drew the same tokens": len(_all_of(seen.tokens)) == 1,
            },
        ),
        Section(
            title="memory of all workers as stages grow",
            unit="MB",
            sides=tuple(sizes.values()),
            ratios=_last_to_first(sizes, more_is_better=False),
            facts={f"shards of {name}": shards for name, shards in seen.shards.items()},
        ),
    ]
    same = len(_all_of(seen.tokens)) == 1
    return sections, [] if same else ["not every number of stages drew the same tokens"]


async def _through_stages(plan: Plan, n_stages: int, seen: Seen) -> float:
    """Decoded tokens a second."""
    name = _counted(n_stages, "stage")
    async with plan.route(n_stages) as route:
        prompt = await route.tokenize(PROMPT)
        decoded = await ours.decode(route, prompt, plan.tokens)
        seen.memory.setdefault(name, []).append(_memory(route))
        seen.tokens.setdefault(name, set()).add(decoded.tokens)
        seen.shards[name] = [
            f"{worker.layers[0]}:{worker.layers[1]} {worker.identity.shard}" for worker in route.workers
        ]
    return decoded.tokens_per_s


# ---- sessions -----------------------------------------------------------------------------------


async def as_sessions_grow(plan: Plan, n_stages: int) -> Section:
    """Tokens a second of all sessions together, over workers with room for the most."""
    async with plan.route(n_stages, max_sessions=max(plan.sessions)) as route:
        prompt = await route.tokenize(PROMPT)
        turns = {
            _counted(n, "session"): partial(_together, route, prompt, n, plan.tokens) for n in plan.sessions
        }
        found = await in_turns(turns, rounds=plan.rounds, warm_up=plan.warm_up)
        size = _memory(route)
    speeds = sides_of(found)
    return Section(
        title=f"decode as sessions grow, {_counted(n_stages, 'stage')}",
        unit="tokens/s of all sessions",
        sides=tuple(speeds.values()),
        ratios=_last_to_first(speeds),
        facts={"memory with room for all of them": f"{size:,.0f} MB"},
        notes=(f"the sessions share {N_CTX:,} KV cells, so their number changes no memory",),
    )


async def _together(route: Route, prompt: Sequence[int], n_sessions: int, n_tokens: int) -> float:
    """Every sequence has its first token before the clock starts; their prompts differ in one token."""
    prefilled = 0
    began = 0.0
    all_prefilled = anyio.Event()

    async def one(own: Sequence[int]) -> None:
        nonlocal prefilled, began
        async with route.open_chain() as chain:
            first = (await chain.forward(own, Output.TOKEN)).token
            prefilled += 1
            if prefilled == n_sessions:
                began = time.perf_counter()
                all_prefilled.set()
            await all_prefilled.wait()
            await _decode(chain, first, n_tokens)

    async with anyio.create_task_group() as tasks:
        for number in range(n_sessions):
            tasks.start_soon(one, [*prompt, prompt[number % len(prompt)]])
    return n_sessions * n_tokens / (time.perf_counter() - began)


# ---- context ------------------------------------------------------------------------------------


async def as_context_grows(plan: Plan) -> list[Section]:
    """Decode at each depth and the prefill on the way there, of one sequence a round; then what a context of
    each size takes."""
    decoded: dict[str, list[float]] = {}
    filled: dict[str, list[float]] = {}
    rounds = plan.rounds
    async with plan.route(n_ctx=max(plan.contexts)) as route:
        text = await route.tokenize(PROMPT)
        for number in range(rounds):
            async with route.open_chain() as chain:
                for depth in plan.contexts:
                    show_progress(f"round {number + 1} of {rounds}: {depth} rows")
                    filling, decoding = await _at_depth(chain, text, depth, plan.tokens)
                    filled.setdefault(f"to {depth} rows", []).append(filling)
                    decoded.setdefault(f"{depth} rows", []).append(decoding)
    show_progress("")
    speeds, fillings = sides_of(decoded), sides_of(filled)
    return [
        Section(
            title="decode as context grows",
            unit="tokens/s",
            sides=tuple(speeds.values()),
            ratios=_last_to_first(speeds),
            facts={"1,000 more rows add": f"{1e3 * _slope(plan.contexts, speeds):.3f} ms a token"},
        ),
        Section(title="prefill as context grows", unit="tokens/s", sides=tuple(fillings.values())),
        await _context_memory(plan),
    ]


async def _at_depth(
    chain: SessionChain, text: Sequence[int], depth: int, n_tokens: int
) -> tuple[float, float]:
    """Fills the sequence, then decodes so that it ends with `depth` rows; tokens a second of both."""
    n_fill = depth - n_tokens - chain.position
    began = time.perf_counter()
    first = (await chain.forward([text[n % len(text)] for n in range(n_fill)], Output.TOKEN)).token
    between = time.perf_counter()
    await _decode(chain, first, n_tokens)
    return n_fill / (between - began), n_tokens / (time.perf_counter() - between)


async def _context_memory(plan: Plan) -> Section:
    """The cells of a context are taken when the shard is loaded, so this is measured once."""
    sizes: dict[str, list[float]] = {}
    for n_ctx in plan.contexts:
        async with plan.route(n_ctx=n_ctx) as route:
            await ours.decode(route, await route.tokenize(PROMPT), 1)
            sizes[f"context of {n_ctx}"] = [_memory(route)]
    sides = sides_of(sizes)
    return Section(
        title="memory of the worker as context grows",
        unit="MB",
        sides=tuple(sides.values()),
        ratios=_last_to_first(sides, more_is_better=False),
        notes=("all cells of a context are taken when the shard is loaded, whatever they are used for",),
    )


async def _decode(chain: SessionChain, token: int, n_tokens: int) -> None:
    for _ in range(n_tokens):
        token = (await chain.forward([token], Output.TOKEN)).token


# ---- what they share ----------------------------------------------------------------------------


def _memory(route: Route) -> float:
    """Megabytes of all workers."""
    infos = [psutil.Process(worker.pid).memory_full_info() for worker in route.workers]
    return sum(getattr(info, "pss", info.uss) for info in infos) / MEGABYTE


def _slope(points: Sequence[int], speeds: Mapping[str, Side]) -> float:
    """Milliseconds a token that one more of what grows adds: the median over the rounds of a straight line
    through all points."""
    rounds = zip(*(side.values for side in speeds.values()), strict=True)
    return median(linear_regression(points, [1e3 / speed for speed in values]).slope for values in rounds)


def _last_to_first(sides: Mapping[str, Side], *, more_is_better: bool = True) -> tuple[Ratio, ...]:
    """The most of what grows against the least."""
    first, *_, last = sides.values()
    return (Ratio(ours=last, peer=first, more_is_better=more_is_better),)


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n > 1)}"


def _all_of(tokens: Mapping[str, Iterable[tuple[int, ...]]]) -> set[tuple[int, ...]]:
    return set().union(*tokens.values())


async def measure(options: Options) -> Report:
    """All of it, or a corner where it shall be tiny."""
    given = options.given
    (model,) = models(options, "demo")
    plan = Plan(
        model=model,
        rounds=options.rounds,
        is_tiny=options.is_tiny,
        threads=given.threads,
        tokens=given.tokens,
    )
    if options.is_tiny:
        plan = replace(plan, tokens=4, stages=(1, 2, 3), sessions=(1, 2), contexts=(256, 512))
    sections, problems = await as_stages_grow(plan)
    sections += [await as_sessions_grow(plan, n_stages) for n_stages in (1, 2)]
    sections += await as_context_grows(plan)
    return Report(
        question=(__doc__ or "").splitlines()[0],
        sections=tuple(sections),
        settings={
            **settings_of([model]),
            "threads of each stage": plan.threads,
            "decoded tokens": plan.tokens,
            "rounds": options.rounds,
        },
        problems=tuple(problems),
    )


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, default=32, help="that each sequence decodes (32)")
    parser.add_argument("--threads", type=int, default=1, help="of each stage (1)")


if __name__ == "__main__":
    run("scaling", __doc__, measure, rounds=3, add=add)
