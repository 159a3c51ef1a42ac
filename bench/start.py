"""How long from a spawn to a ready worker, and from a SIGKILL; what memory does it take? Beside in process.

In process is llama.cpp's library in a child that does nothing else: the load of the same file and a context
of the same size. Ours is a worker that is spawned, says hello, looks at the artifact's digest, loads,
computes a first row and attests what it holds; through the supervisor's API, and as the whole command
`gguf-worker serve` until its log says ready. The file is in the page cache on all sides. Digests and shard
files are remembered from earlier starts, as a user's are; starts without anything remembered are shown apart.

    make bench BENCH=start
    PYTHONPATH=tests python bench/start.py MODEL [--rounds 5] [--threads 2] [--tiny] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from gguf_worker import Recipe, Route, ShardSpec, Supervisor
from gguf_worker.supervision.events import EventReader, RestartScheduled, StateChanged
from gguf_worker.supervision.life import Life, WorkerCommand
from gguf_worker.supervision.lifecycle import WorkerState
from gguf_worker.supervision.settings import WorkerSettings
from gguf_worker.testing.process import LineProcess
from kit import ours
from kit.library import Library
from kit.models import Model, models, settings_of
from kit.program import Options, run
from kit.report import Ratio, Report, Section, Side, sides_of
from kit.rounds import in_turns

MOST_START = 1.3
MOST_MEMORY = 1.10
PROMPT = (1, 2, 3, 4, 5, 6, 7, 8)
DECODED = 8
"""Tokens after which memory is looked at: what is touched only by a first use counts on both sides."""

LOAD = "in process: load"
PROGRAM = "in process: the whole program"
COLD = "supervisor: to ready"
SERVE = "gguf-worker serve: to ready"
SERVE_IMPORTS = "gguf-worker serve: to its first line"
KILL = "supervisor: SIGKILL to ready"
KILL_ALONE = "the same without the backoff"

Seconds = Callable[[], Awaitable[float]]


# ---- the starts ---------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Starts:
    """Of one model; each method is one start, and gives its seconds."""

    model: Path
    recipe: Recipe
    cache: Path
    """Of digests and shard files: one that only this bench uses."""
    programs: list[float]
    """What `load` took as a whole program, beside what it gives."""
    imports: list[float]
    """What of each `serve` went by before it did anything: Python's start and all that is imported."""
    backoffs: list[float]
    """What of each `kill` was waiting on purpose."""

    def spec(self) -> ShardSpec:
        return ShardSpec(str(self.model), recipe=self.recipe, cache_dir=str(self.cache))

    def library(self) -> Library:
        return Library(self.model, threads=self.recipe.n_threads)

    async def load(self) -> float:
        """Of the library alone, in a fresh process."""
        began = time.perf_counter()
        async with self.library() as library:
            self.programs.append(time.perf_counter() - began)
            return library.load_s

    async def cold(self) -> float:
        """From the supervisor's begin to its first worker."""
        began = time.perf_counter()
        async with Supervisor(self.spec()):
            return time.perf_counter() - began

    async def serve(self) -> float:
        """From the spawn of the command to the line that says ready."""
        command = [sys.executable, "-m", "gguf_worker.cli", "serve", str(self.model), "--json"]
        command += ["--threads", str(self.recipe.n_threads)]
        environment = {**os.environ, "GGUF_WORKER_CACHE": str(self.cache)}
        began = time.perf_counter()
        async with LineProcess(command, environment=environment) as process:
            await process.wait_line(says("starting"))
            self.imports.append(time.perf_counter() - began)
            await process.wait_line(says("worker_ready"))
            return time.perf_counter() - began

    async def kill(self) -> float:
        """From SIGKILL to the supervisor's ready state, with the policy that everybody gets."""
        supervisor = Supervisor(self.spec())
        async with supervisor as worker:
            events = supervisor.events(from_start=False)
            began = time.perf_counter()
            os.kill(worker.pid, signal.SIGKILL)
            self.backoffs.append((await events.wait_for(RestartScheduled)).delay_s)
            await until_ready(events)
            return time.perf_counter() - began


def says(event: str) -> Callable[[str], bool]:
    """Whether a line of the log tells of that event; lines that are no JSON do not."""

    def does(line: str) -> bool:
        try:
            found = json.loads(line)
        except ValueError:
            return False
        return isinstance(found, dict) and found.get("event") == event

    return does


async def until_ready(events: EventReader) -> None:
    await events.wait_for(StateChanged, lambda event: event.state is WorkerState.READY)


async def starts(model: Model, threads: int, rounds: int, cache: Path) -> Section:
    """One shard that is the whole file."""
    recipe = Recipe(n_threads=threads)
    side = Starts(model=model.path, recipe=recipe, cache=cache, programs=[], imports=[], backoffs=[])
    turns: dict[str, Seconds] = {LOAD: side.load, COLD: side.cold, SERVE: side.serve, KILL: side.kill}
    found = await in_turns({name: milliseconds(turn) for name, turn in turns.items()}, rounds=rounds)
    backoffs = [1e3 * value for value in side.backoffs[-rounds:]]
    found[PROGRAM] = [1e3 * value for value in side.programs[-rounds:]]
    found[SERVE_IMPORTS] = [1e3 * value for value in side.imports[-rounds:]]
    found[KILL_ALONE] = without(found[KILL], backoffs)
    sides = sides_of(found)
    return Section(
        title=f"{model.name}: to ready",
        unit="ms",
        sides=tuple(sides[name] for name in (LOAD, PROGRAM, COLD, SERVE_IMPORTS, SERVE, KILL, KILL_ALONE)),
        ratios=(
            start_ratio(sides[COLD], sides[LOAD]),
            start_ratio(sides[KILL_ALONE], sides[LOAD]),
            Ratio(ours=sides[KILL], peer=sides[LOAD], more_is_better=False),
            Ratio(ours=sides[SERVE], peer=sides[PROGRAM], more_is_better=False),
        ),
        facts={"backoff by the policy, ms": [round(value) for value in backoffs]},
        notes=(
            "The whole programs are Python's, with their imports; theirs are llama-cpp-python and numpy.",
            "The command first looks at the model in a worker of its own, then starts the one that serves.",
            "After a SIGKILL the kernel takes the dead worker's memory back before its end is told.",
        ),
    )


def start_ratio(ours_: Side, peer: Side) -> Ratio:
    return Ratio(ours=ours_, peer=peer, wanted=MOST_START, more_is_better=False)


def without(values: Sequence[float], parts: Sequence[float]) -> list[float]:
    """Each value less its part."""
    return [value - part for value, part in zip(values, parts, strict=True)]


def milliseconds(turn: Seconds) -> Seconds:
    async def once() -> float:
        return 1e3 * await turn()

    return once


# ---- with nothing remembered --------------------------------------------------------------------


async def first_starts(model: Model, threads: int, rounds: int, cache: Path) -> Section:
    """One shard and two stages: with an empty cache, and with what an earlier start left in it."""
    recipe = Recipe(n_threads=threads)
    stages = await ours.specs(model.path, 2, recipe)
    whole = [ShardSpec(str(model.path), recipe=recipe)]
    turns: dict[str, Seconds] = {}
    for name, specs in (("one shard", whole), ("two stages", stages)):
        turns[f"{name}, remembered"] = milliseconds(remembered(specs, cache))
        turns[f"{name}, first time"] = milliseconds(first_time(specs, cache.with_name("empty")))
    sides = sides_of(await in_turns(turns, rounds=rounds))
    return Section(
        title=f"{model.name}: the first start",
        unit="ms",
        sides=tuple(sides[name] for name in turns),
        ratios=tuple(
            Ratio(ours=sides[f"{n}, first time"], peer=sides[f"{n}, remembered"], more_is_better=False)
            for n in ("one shard", "two stages")
        ),
        facts={"bytes of the file": model.path.stat().st_size},
        notes=(
            "A first start hashes the file; of two stages each also writes its shard file to the disk, "
            "waits until it is there, and hashes it.",
        ),
    )


def remembered(specs: Sequence[ShardSpec], cache: Path) -> Seconds:
    """A start of all of them with what is in the cache; the first one fills it and is thrown away."""

    async def once() -> float:
        return await start_together(specs, cache)

    return once


def first_time(specs: Sequence[ShardSpec], cache: Path) -> Seconds:
    """A start of all of them with a cache that is made empty before."""

    async def once() -> float:
        make_empty(cache)
        return await start_together(specs, cache)

    return once


def make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


async def start_together(specs: Sequence[ShardSpec], cache: Path) -> float:
    began = time.perf_counter()
    async with Route.start([replace(spec, cache_dir=str(cache)) for spec in specs]):
        return time.perf_counter() - began


# ---- memory -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes of a process, or of several together: its own, and its share of what is mapped from files."""

    empty: int
    """With its libraries, and no model."""
    now: int

    @property
    def gained(self) -> int:
        return self.now - self.empty


def proportional_bytes(pid: int) -> int:
    """Private pages, and of pages that several processes map a part each."""
    return int(psutil.Process(pid).memory_full_info().pss)


async def held_in_process(model: Path, threads: int) -> Held:
    async with Library(model, threads=threads) as library:
        await library.decode(PROMPT, DECODED)
        found = await library.memory()
    return Held(empty=found["empty"]["pss"], now=found["now"]["pss"])


async def held_by_workers(specs: Sequence[ShardSpec]) -> Held:
    empty = await empty_worker()
    async with Route.start(specs) as route:
        await ours.decode(route, PROMPT, DECODED)
        now = sum(proportional_bytes(worker.pid) for worker in route.workers)
    return Held(empty=empty * len(specs), now=now)


async def empty_worker() -> int:
    """Bytes of a worker that has said hello and was asked for nothing."""
    async with Life(WorkerCommand(engine="llama"), WorkerSettings()) as life:
        assert life.pid is not None
        return proportional_bytes(life.pid)


async def memory(model: Model, threads: int, rounds: int, cache: Path) -> Section:
    """What a model adds to a process, and processes as a whole."""
    recipe = Recipe(n_threads=threads)
    found: dict[str, list[Held]] = {}

    async def measure_once() -> None:
        found.setdefault("in process", []).append(await held_in_process(model.path, threads))
        for name, n_stages in (("one worker", 1), ("two workers", 2)):
            specs = await ours.specs(model.path, n_stages, recipe)
            held = await held_by_workers([replace(spec, cache_dir=str(cache)) for spec in specs])
            found.setdefault(name, []).append(held)

    for _ in range(rounds):
        await measure_once()
    gained = {name: side(name, [held.gained for held in values]) for name, values in found.items()}
    whole = {name: side(f"{name}, whole", [held.now for held in values]) for name, values in found.items()}
    peer = gained["in process"]
    return Section(
        title=f"{model.name}: memory that loading it and a first use add; whole processes below",
        unit="MiB",
        sides=(*gained.values(), *whole.values()),
        ratios=(
            Ratio(ours=gained["one worker"], peer=peer, wanted=MOST_MEMORY, more_is_better=False),
            Ratio(ours=gained["two workers"], peer=peer, more_is_better=False),
            Ratio(ours=whole["one worker"], peer=whole["in process"], more_is_better=False),
        ),
        facts={
            f"empty, {name}, MiB": round(mebibytes(values[-1].empty), 1) for name, values in found.items()
        },
        notes=(
            "Proportional set size: own pages, pages of the model's file included. Taken off is what the "
            "process held before: Python with numpy there, a worker that has said hello here.",
            "Two workers hold the same layers, and each has compute buffers of its own.",
        ),
    )


def side(name: str, values: Sequence[int]) -> Side:
    return Side(name=name, values=tuple(map(mebibytes, values)))


def mebibytes(n_bytes: int) -> float:
    return n_bytes / (1 << 20)


# ---- all of it ----------------------------------------------------------------------------------

KINDS = ("demo", "1b-q4_0", "1b-q8_0")
MEMORY_ROUNDS = 3
"""Memory is the same in each."""


async def measure(options: Options) -> Report:
    threads, rounds = options.given.threads, options.rounds
    tried = models(options, *KINDS)
    sections: list[Section] = []
    for model in tried:
        # In the build folder: a folder for temporary files may be in memory, which a shard file is not.
        with TemporaryDirectory(prefix="start-", dir=own_folder()) as folder:
            cache = Path(folder) / "cache"
            sections.append(await starts(model, threads, rounds, cache))
            sections.append(await first_starts(model, threads, rounds, cache))
            sections.append(await memory(model, threads, min(rounds, MEMORY_ROUNDS), cache))
    return Report(
        question=(__doc__ or "").splitlines()[0],
        sections=tuple(sections),
        settings={**settings_of(tried), "rounds": rounds, "threads": threads},
    )


def own_folder() -> Path:
    """Where files of this bench may lie."""
    place = Path(__file__).parents[1] / "build" / "bench"
    place.mkdir(parents=True, exist_ok=True)
    return place


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, default=2, help="of each process that computes (2)")


if __name__ == "__main__":
    run("start", __doc__, measure, add=options_of)
