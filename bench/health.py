"""How soon does a worker say how it is while it computes, and how soon does it stop when it is told to?

The demo model in one worker, with what a user gets by default. Answers of its control thread (ping, health),
and the supervisor's own summary, are timed while nothing is computed, while a prompt of 2,048 tokens is, and
while eight sessions decode. The same process asks and feeds the worker, as a supervisor does.

Then a request is cancelled at a random moment of a prefill of 2,048 tokens, and of the decode of one of eight
sessions: until the worker has acknowledged it, until the request is answered, and until its session is closed
and its KV cells are free. Last, a client of `gguf-worker serve --http` closes its connection in the middle of
either: until the workers hold no KV cell any more, as /v1/status says.

design.md promises that a ping is answered within 20 ms (p99) while a worker computes.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio

from gguf_worker import Recipe, ShardSpec, Supervisor, Worker
from gguf_worker.errors import RequestError
from gguf_worker.protocol.messages import Output
from gguf_worker.supervision.session import Session
from gguf_worker.testing.figures.figure import percentile
from kit import left, program
from kit.commands import command
from kit.http import Address, get_json, post
from kit.models import models, settings_of
from kit.program import Options
from kit.report import Ratio, Report, Section, Side
from kit.rounds import show_progress

PREFILL_ROWS = 2048
SESSIONS = 8
PROMPT_ROWS = 64
DECODED = 256
"""Tokens of a session before it begins anew."""
N_CTX = 4096
PROMISED_MS = 20.0
"""Of a ping, p99, while the worker computes."""
BETWEEN_S = 0.002
"""Of two questions."""
PREFILL_LOOK_S = (0.02, 0.3)
"""When a prefill is cancelled, after its begin: one of that time, so that it has a long way to go."""
DECODE_LOOK_S = (0.0, 0.1)

Ask = Callable[[], Awaitable[object]]


def prompt_of(n_tokens: int, n_vocab: int, seed: int = 0) -> list[int]:
    """Tokens that any vocabulary has."""
    return [2 + (7 * index + 131 * seed) % (n_vocab - 2) for index in range(n_tokens)]


# ---- what the worker does meanwhile -------------------------------------------------------------


@asynccontextmanager
async def idle(_: Worker, __: int) -> AsyncIterator[None]:
    yield


@asynccontextmanager
async def prefilling(worker: Worker, n_rows: int) -> AsyncIterator[None]:
    """A long prompt, again and again."""

    async def prefill() -> None:
        while True:
            async with await worker.open_session() as session:
                prompt = prompt_of(n_rows, worker.model.n_vocab)
                await session.forward(tokens=prompt, output=Output.TOKEN)

    async with _beside([prefill]):
        yield


@asynccontextmanager
async def decoding(worker: Worker, _: int) -> AsyncIterator[None]:
    """Eight sessions, whose rows share batches."""

    async def decode(number: int) -> None:
        while True:
            async with await worker.open_session() as session:
                await decode_in(session, worker, number)

    async with _beside([partial(decode, number) for number in range(SESSIONS)]):
        yield


async def decode_in(session: Session, worker: Worker, number: int) -> None:
    """Greedy tokens after a prompt of the session's own."""
    prompt = prompt_of(PROMPT_ROWS, worker.model.n_vocab, number)
    result = await session.forward(tokens=prompt, output=Output.TOKEN)
    for _ in range(DECODED):
        result = await session.forward(tokens=[result.token], output=Output.TOKEN)


@asynccontextmanager
async def _beside(tasks: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> AsyncIterator[None]:
    async with anyio.create_task_group() as group:
        for task in tasks:
            group.start_soon(task)
        await anyio.sleep(0.1)  # until they compute
        yield
        group.cancel_scope.cancel()


PHASES = {"idle": idle, "prefill": prefilling, "eight decode": decoding}


# ---- answers while it computes ------------------------------------------------------------------


async def asked(ask: Ask, times: int) -> list[float]:
    """Milliseconds of each answer."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        await ask()
        took.append(1e3 * (time.perf_counter() - began))
        await anyio.sleep(BETWEEN_S)
    return took


async def answers(supervisor: Supervisor, worker: Worker, options: Options) -> list[Section]:
    """A section for each kind of question."""
    times, n_rows = (10, 256) if options.is_tiny else (options.given.times, PREFILL_ROWS)
    kinds: dict[str, Ask] = {"ping": worker.ping, "health": worker.health, "summary": supervisor.metrics}
    found: dict[str, dict[str, list[list[float]]]] = {kind: {phase: [] for phase in PHASES} for kind in kinds}
    for number in range(options.rounds):
        for phase, computing in PHASES.items():
            show_progress(f"round {number + 1} of {options.rounds}: answers, {phase}")
            async with computing(worker, n_rows):
                for kind, ask in kinds.items():
                    found[kind][phase].append(await asked(ask, times))
    show_progress("")
    titles = {
        "ping": "ping: there and back",
        "health": "health of the worker",
        "summary": "the supervisor's summary (Supervisor.metrics), with a fresh health in it",
    }
    return [answer_section(titles[kind], phases, kind == "ping") for kind, phases in found.items()]


def answer_section(title: str, phases: dict[str, list[list[float]]], is_promised: bool) -> Section:
    """p50 and p99 of each phase, one value per round."""
    sides = {
        f"{phase}, p{percent}": Side(
            name=f"{phase}, p{percent}", values=tuple(percentile(values, percent) for values in rounds)
        )
        for phase, rounds in phases.items()
        for percent in (50, 99)
    }
    ratios: list[Ratio] = []
    if is_promised:
        n_rounds = len(next(iter(phases.values())))
        promised = Side(name=f"{PROMISED_MS:g} ms", values=(PROMISED_MS,) * n_rounds)
        ratios = [
            Ratio(ours=side, peer=promised, wanted=1.0, more_is_better=False)
            for name, side in sides.items()
            if name.endswith("p99") and not name.startswith("idle")
        ]
    slowest = {phase: f"{max(map(max, rounds)):.2f} ms" for phase, rounds in phases.items()}
    n_asked = sum(map(len, next(iter(phases.values()))))
    return Section(
        title=title,
        unit="ms",
        sides=tuple(sides.values()),
        ratios=tuple(ratios),
        facts={"asked in each phase": n_asked, "the slowest": slowest},
    )


# ---- cancel -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Cancels:
    """Milliseconds since a cancel was sent."""

    acknowledged: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)
    """The cancelled request itself."""
    closed: list[float] = field(default_factory=list)
    """Its session, and its KV cells are free."""
    where: Counter[str] = field(default_factory=Counter)
    """The request was queued, running, or `unknown` any more."""
    too_late: int = 0
    """Requests that were complete all the same."""
    step_ms: list[float] = field(default_factory=list)
    """Of one step of the sessions that decode meanwhile."""


async def cancel_once(
    session: Session, worker: Worker, tokens: Sequence[int], found: Cancels, at_s: float
) -> None:
    """Sends a forward, cancels it after so many seconds, and closes the session."""
    answered_at: list[float] = []

    async def forward() -> None:
        try:
            await session.forward(tokens=tokens, output=Output.TOKEN)
            found.too_late += 1
        except RequestError as error:
            if error.code != "cancelled":
                raise
        answered_at.append(time.perf_counter())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(forward)
        await anyio.sleep(at_s)
        if not (requests := worker.requests_of(session.id)):
            return
        began = time.perf_counter()
        cancelled = await worker.cancel(requests[0])
        found.where[cancelled.state] += 1
        found.acknowledged.append(1e3 * (time.perf_counter() - began))
    await session.close()
    found.closed.append(1e3 * (time.perf_counter() - began))
    found.answered.append(1e3 * (answered_at[0] - began))


async def cancels_in_prefill(worker: Worker, times: int, n_rows: int, chance: random.Random) -> Cancels:
    """Of one session that is alone."""
    found = Cancels()
    for _ in range(times):
        async with await worker.open_session() as session:
            prompt = prompt_of(n_rows, worker.model.n_vocab)
            await cancel_once(session, worker, prompt, found, chance.uniform(*PREFILL_LOOK_S))
    return found


async def cancels_in_decode(worker: Worker, times: int, chance: random.Random) -> Cancels:
    """Of a session that decodes beside seven others."""
    found = Cancels()
    async with decoding(worker, 0):
        for _ in range(times):
            async with await worker.open_session() as session:
                prompt = prompt_of(PROMPT_ROWS, worker.model.n_vocab)
                result = await session.forward(tokens=prompt, output=Output.TOKEN)
                began = time.perf_counter()
                result = await session.forward(tokens=[result.token], output=Output.TOKEN)
                step_s = time.perf_counter() - began
                found.step_ms.append(1e3 * step_s)
                await cancel_once(session, worker, [result.token], found, chance.uniform(0, step_s))
    return found


async def cancels(worker: Worker, options: Options) -> list[Section]:
    times, n_rows = (3, 1024) if options.is_tiny else (options.given.cancels, PREFILL_ROWS)
    chance = random.Random(7)
    of_prefill, of_decode = [], []
    for number in range(options.rounds):
        show_progress(f"round {number + 1} of {options.rounds}: cancels")
        of_prefill.append(await cancels_in_prefill(worker, times, n_rows, chance))
        of_decode.append(await cancels_in_decode(worker, times, chance))
    show_progress("")
    return [
        cancel_section(f"cancel in a prefill of {n_rows:,} tokens", of_prefill),
        cancel_section("cancel in the decode of one session beside eight others", of_decode),
    ]


def cancel_section(title: str, rounds: Sequence[Cancels]) -> Section:
    """p50 and p99 of each moment, one value per round."""
    moments: dict[str, list[list[float]]] = {
        "acknowledged": [one.acknowledged for one in rounds],
        "answered": [one.answered for one in rounds],
        "closed, cells free": [one.closed for one in rounds],
    }
    return Section(
        title=title,
        unit="ms",
        sides=tuple(
            Side(
                name=f"{moment}, p{percent}",
                values=tuple(percentile(values, percent) for values in of_rounds if values),
            )
            for moment, of_rounds in moments.items()
            for percent in (50, 99)
            if any(of_rounds)
        ),
        facts={
            "cancels": sum(len(one.answered) for one in rounds),
            "the request was": dict(sum((one.where for one in rounds), Counter())),
            "cancels that came too late": sum(one.too_late for one in rounds),
            **_steps([step for one in rounds for step in one.step_ms]),
        },
    )


def _steps(step_ms: Sequence[float]) -> dict[str, object]:
    if not step_ms:
        return {}
    return {"a step of all that decode, waiting included, p50": f"{percentile(step_ms, 50):.1f} ms"}


# ---- a client that leaves -----------------------------------------------------------------------


async def leave(address: Address, body: dict[str, object], stay_s: float) -> float:
    """A client that closes its connection after some time: milliseconds until the workers hold nothing."""
    async with await post(address, "/v1/completions", body):
        await anyio.sleep(stay_s)
    began = time.perf_counter()
    while any(left.in_use(await get_json(address, "/v1/status")).values()):
        pass
    return 1e3 * (time.perf_counter() - began)


async def leavers(options: Options) -> Section:
    """Through `serve --http`, the demo model in two shards."""
    times, n_rows = (2, 1024) if options.is_tiny else (options.given.cancels, PREFILL_ROWS)
    chance = random.Random(8)
    found: dict[str, list[list[float]]] = {"in prefill": [], "in decode": []}
    looks: list[list[float]] = []
    words = ("serve", str(options.model), "--shards", "2", "--threads", str(options.given.threads))
    async with command(*words) as served:
        address = served.address
        long, short = prompt_of(n_rows, 49152), prompt_of(PROMPT_ROWS, 49152)
        asked_for: dict[str, object] = {"max_tokens": 1024, "stream": True, "temperature": 0}
        for number in range(options.rounds):
            show_progress(f"round {number + 1} of {options.rounds}: clients that leave")
            looks.append(await asked(lambda: get_json(address, "/v1/status"), 5))
            prefill = [
                await leave(address, {**asked_for, "prompt": long}, chance.uniform(*PREFILL_LOOK_S))
                for _ in range(times)
            ]
            decode = [
                await leave(address, {**asked_for, "prompt": short}, 1.0 + chance.uniform(*DECODE_LOOK_S))
                for _ in range(times)
            ]
            found["in prefill"].append(prefill)
            found["in decode"].append(decode)
    show_progress("")
    return Section(
        title="a client of the gateway closes its connection: all KV cells free",
        unit="ms",
        sides=tuple(
            Side(name=f"{phase}, p{percent}", values=tuple(percentile(one, percent) for one in rounds))
            for phase, rounds in found.items()
            for percent in (50, 99)
        ),
        facts={
            "clients of each kind": sum(map(len, found["in prefill"])),
            "one look at /v1/status, which is how finely this is told": f"{percentile(looks[0], 50):.2f} ms",
        },
    )


# ---- all of it ----------------------------------------------------------------------------------


async def measure(options: Options) -> Report:
    tried = models(options, "demo")
    recipe = Recipe(n_ctx=N_CTX, n_threads=options.given.threads)
    supervisor = Supervisor(ShardSpec(model=str(options.model), recipe=recipe, max_sessions=2 * SESSIONS))
    async with supervisor as worker:
        sections = await answers(supervisor, worker, options)
        sections += await cancels(worker, options)
        health = await worker.health()
        problems = [f"{health.kv_cells_used} KV cells left"] if health.kv_cells_used else []
        threads = worker.identity.recipe.n_threads
    sections.append(await leavers(options))
    return Report(
        question="How soon does a worker say how it is while it computes, and stop when it is told to?",
        sections=tuple(sections),
        settings={
            **settings_of(tried),
            "rounds": options.rounds,
            "threads": threads,
            "asked": options.given.times,
            "cancels": options.given.cancels,
        },
        problems=tuple(problems),
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, default=0, help="of the worker; 0 lets the engine choose")
    parser.add_argument("--times", type=int, default=300, help="questions of a kind in each phase (300)")
    parser.add_argument("--cancels", type=int, default=20, help="of a kind in each round (20)")


if __name__ == "__main__":
    program.run("health", __doc__, measure, rounds=3, add=add_options)
