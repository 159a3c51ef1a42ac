"""What do our frames cost, beside a bare pipe and a copy in memory? How much CPU does the supervisor take?

Requests to a worker with the fake engine, whose own computing time is taken off, beside a child that reads
and writes as many bytes through the same pipes and looks at none of them. Then the CPU time of the
supervisor's process for each token that the demo model decodes, in one, two and three stages.

    make bench BENCH=pipe
    PYTHONPATH=tests python bench/pipe.py MODEL [--rounds 5] [--tiny] [--json]
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from gguf_worker import Output, Recipe, Route, ShardSpec, Supervisor
from gguf_worker.supervision.worker import Worker
from kit import ours
from kit.bare import BarePipe
from kit.models import models, settings_of
from kit.program import Options, run
from kit.report import Ratio, Report, Section, sides_of
from kit.rounds import in_turns

N_EMBD = 4096
ROW = bytes(4 * N_EMBD)
ROWS = 512
"""Of a large frame: 8 MiB."""
FAKE = f"fake:layers=3,embd={N_EMBD},vocab=256"
FIRST, MIDDLE = (0, 1), (1, 2)
PROMPT = "The first rule of a good workshop is that every tool has its place, because"
STAGES = (1, 2, 3)

OURS, BARE, MEMCPY = "our frames", "bare pipe", "memcpy"

Ask = Callable[[], Awaitable[float]]
"""Does it once, and gives the seconds without the engine's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How often things are done."""

    small: int
    """Exchanges of small frames in a round."""
    large: int
    """Exchanges of 8 MiB in a round."""
    tokens: int

    @classmethod
    def of(cls, options: Options) -> Count:
        return cls(small=50, large=2, tokens=8) if options.is_tiny else cls(small=2000, large=20, tokens=128)


# ---- requests -----------------------------------------------------------------------------------


class Asker:
    """Forwards of one session, which is emptied when it is full."""

    def __init__(self, worker: Worker, session: int, *, n_rows: int, output: Output) -> None:
        self._worker = worker
        self._session = session
        self._n_rows = n_rows
        self._output = output
        self._position = 0
        takes_tokens = worker.layers[0] == 0
        self._tokens = (1,) * n_rows if takes_tokens else None
        self._hidden = None if takes_tokens else ROW * n_rows

    async def forward(self) -> float:
        """One request; seconds without those in which the engine computed."""
        if self._position + self._n_rows > self._worker.n_ctx:
            await self._worker.trim(session=self._session, position=0)
            self._position = 0
        began = time.perf_counter()
        result = await self._worker.forward(
            session=self._session,
            position=self._position,
            output=self._output,
            tokens=self._tokens,
            hidden=self._hidden,
        )
        seconds = time.perf_counter() - began
        self._position = result.length
        return seconds - result.compute_us / 1e6


@asynccontextmanager
async def fake_worker(layers: tuple[int, int]) -> AsyncIterator[Worker]:
    async with Supervisor(ShardSpec(FAKE, layers=layers, engine="fake")) as worker:
        yield worker


@asynccontextmanager
async def asking(worker: Worker, *, n_rows: int, output: Output) -> AsyncIterator[Ask]:
    async with await worker.open_session() as session:
        yield Asker(worker, session.id, n_rows=n_rows, output=output).forward


async def bytes_of(worker: Worker, ask: Ask) -> tuple[int, int]:
    """What a worker reads and writes for one request, as the kernel counts it: a few of these bytes wake its
    own threads."""
    await ask()
    before = psutil.Process(worker.pid).io_counters()
    await ask()
    after = psutil.Process(worker.pid).io_counters()
    return after.read_chars - before.read_chars, after.write_chars - before.write_chars


async def repeated(ask: Ask, count: int) -> float:
    """The median of so many."""
    return statistics.median([await ask() for _ in range(count)])


# ---- the bare pipe ------------------------------------------------------------------------------


async def small_frames(title: str, worker: Worker, ask: Ask, count: int, rounds: int) -> Section:
    """Round trips in microseconds."""
    request, answer = await bytes_of(worker, ask)
    with BarePipe(request, answer) as bare:

        async def through_bare() -> float:
            return statistics.median(bare.exchange() for _ in range(count)) * 1e6

        async def through_ours() -> float:
            return await repeated(ask, count) * 1e6

        found = await in_turns({BARE: through_bare, OURS: through_ours}, rounds=rounds)
    sides = sides_of(found)
    return Section(
        title=title,
        unit="us of a round trip",
        sides=(sides[BARE], sides[OURS]),
        ratios=(Ratio(ours=sides[OURS], peer=sides[BARE], more_is_better=False),),
        facts={"bytes there and back": f"{request} and {answer}", "round trips in a round": count},
    )


async def large_frames(title: str, worker: Worker, ask: Ask, count: int, rounds: int) -> Section:
    """Throughput of one direction, in GB a second."""
    request, answer = await bytes_of(worker, ask)
    gigabytes = max(request, answer) / 1e9
    copy = copier(max(request, answer))
    with BarePipe(request, answer) as bare:

        async def through_bare() -> float:
            return gigabytes / statistics.median(bare.exchange() for _ in range(count))

        async def through_ours() -> float:
            return gigabytes / await repeated(ask, count)

        async def in_memory() -> float:
            return gigabytes / statistics.median(copy() for _ in range(count))

        found = await in_turns({MEMCPY: in_memory, BARE: through_bare, OURS: through_ours}, rounds=rounds)
    sides = sides_of(found)
    return Section(
        title=title,
        unit="GB/s",
        sides=(sides[MEMCPY], sides[BARE], sides[OURS]),
        ratios=(
            Ratio(ours=sides[OURS], peer=sides[BARE]),
            Ratio(ours=sides[BARE], peer=sides[MEMCPY]),
        ),
        facts={"bytes there and back": f"{request} and {answer}", "round trips in a round": count},
        notes=("A pipe copies every byte twice: into the kernel, and out of it.",),
    )


def copier(n_bytes: int) -> Callable[[], float]:
    """Copies so many bytes between two buffers that are in memory already; gives the seconds."""
    source, target = ctypes.create_string_buffer(n_bytes), ctypes.create_string_buffer(n_bytes)

    def copy() -> float:
        began = time.perf_counter()
        ctypes.memmove(target, source, n_bytes)
        return time.perf_counter() - began

    copy()
    return copy


async def frames(count: Count, rounds: int) -> list[Section]:
    """The four exchanges."""
    async with fake_worker(MIDDLE) as middle, fake_worker(FIRST) as first:
        sections = [await small_frames("A ping", middle, middle.ping, count.small, rounds)]
        async with asking(middle, n_rows=1, output=Output.HIDDEN) as ask:
            title = f"A forward of one row of {N_EMBD} float32, there and back"
            sections.append(await small_frames(title, middle, ask, count.small, rounds))
        async with asking(middle, n_rows=ROWS, output=Output.NONE) as ask:
            sections.append(await large_frames("8 MiB to the worker", middle, ask, count.large, rounds))
        async with asking(first, n_rows=ROWS, output=Output.HIDDEN) as ask:
            sections.append(await large_frames("8 MiB from the worker", first, ask, count.large, rounds))
    return sections


# ---- the supervisor's CPU -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a decode took of this process."""

    cpu_s: float
    """Of all its threads, in user and kernel mode."""
    wall_s: float
    n_tokens: int

    @property
    def us_per_token(self) -> float:
        return self.cpu_s / self.n_tokens * 1e6

    @property
    def share(self) -> float:
        """Of one processor."""
        return self.cpu_s / self.wall_s


async def spent(route: Route, prompt: list[int], n_tokens: int) -> Spent:
    """Of the decode alone: the prefill gives the first token."""
    began_cpu, began = time.process_time(), time.perf_counter()
    count = 0
    async for step in route.generate(prompt, max_tokens=n_tokens + 1):
        count = step.index
        if count == 0:
            began_cpu, began = time.process_time(), time.perf_counter()
    return Spent(
        cpu_s=time.process_time() - began_cpu, wall_s=time.perf_counter() - began, n_tokens=max(count, 1)
    )


async def processor(model: Path, n_tokens: int, rounds: int) -> Section:
    """Microseconds of CPU per token. A route lives for its turn only, and with the default recipe."""
    shares: dict[str, list[float]] = {}

    def turn(name: str, n_stages: int) -> Ask:
        async def once() -> float:
            async with ours.stages(model, n_stages, Recipe()) as route:
                found = await spent(route, await route.tokenize(PROMPT), n_tokens)
            shares.setdefault(name, []).append(found.share)
            return found.us_per_token

        return once

    names = {f"{n} stage{'s' * (n > 1)}": n for n in STAGES}
    found = await in_turns({name: turn(name, n) for name, n in names.items()}, rounds=rounds)
    sides = sides_of(found)
    return Section(
        title="The supervisor's process while the demo model decodes",
        unit="us of CPU per token",
        sides=tuple(sides[name] for name in names),
        facts={
            f"share of one processor, {name}": f"{statistics.median(shares[name][-rounds:]):.1%}"
            for name in names
        },
    )


async def measure(options: Options) -> Report:
    count = Count.of(options)
    (demo,) = models(options, "demo")
    sections = await frames(count, options.rounds)
    sections.append(await processor(demo.path, count.tokens, options.rounds))
    return Report(
        question=(__doc__ or "").splitlines()[0],
        sections=tuple(sections),
        settings={**settings_of([demo]), "rounds": options.rounds, "tokens": count.tokens},
    )


if __name__ == "__main__":
    run("pipe", __doc__, measure)
