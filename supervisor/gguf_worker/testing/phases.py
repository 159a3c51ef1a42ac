"""Brings a supervised worker of the fake engine to a phase of its life, does something to it there, and sees
what its supervisor makes of it."""

from __future__ import annotations

import os
import shlex
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from gguf_worker.errors import StartupError
from gguf_worker.process.executable import find_executable
from gguf_worker.process.exit import ExitReport
from gguf_worker.process.release import ReleaseReport
from gguf_worker.protocol.messages import Output
from gguf_worker.supervision.events import LoadProgress, StderrLine, WorkerEnded
from gguf_worker.supervision.settings import WorkerSettings
from gguf_worker.supervision.spec import ShardSpec
from gguf_worker.supervision.supervisor import Supervisor
from gguf_worker.supervision.worker import Worker
from gguf_worker.testing.calls import Call, Calls
from gguf_worker.testing.faults import FAKE_MODEL, Fault, plan

DEADLINE_S = 60.0
"""Nothing that is rehearsed here may take longer, on whatever machine."""


class Phase(StrEnum):
    """Where a worker is in its life."""

    SPAWN = "spawn"
    """The process was just started."""
    HELLO = "hello"
    """It is about to introduce itself."""
    LOAD = "load"
    IDLE = "idle"
    COMPUTE = "compute"
    """It computes, and more requests wait."""
    SEND = "send"
    """It is writing an answer."""
    STOP = "stop"
    """It was asked to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is done to a worker, and where."""

    phase: Phase
    settings: WorkerSettings
    faults: Sequence[Fault] = ()
    """What the worker does by itself."""
    preamble: str = ""
    """Shell commands that run in the process before it becomes the worker."""
    prepare: Callable[[Rig], None] | None = None
    """Done when it is ready, before any call is made."""
    act: Callable[[Rig], None] | None = None
    """Done when it is in the phase; None where the worker fails by itself."""
    asks: bool = False
    """Whether somebody pings it then."""
    awaits_line: bool = False
    """In the phase `spawn`: whether a line on stderr says that it is time."""
    n_forwards: int = 3
    """Calls in flight from `compute` on."""
    ends: bool = True
    """Whether the worker ends of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What became of it."""

    exit: ExitReport | None
    release: ReleaseReport | None
    latency_s: float | None
    """From what was done (where the worker fails by itself: from the last thing that the host did) to the
    first caller who was told, or, where nobody waited, to the event `WorkerEnded`. None where the worker
    lived on."""
    calls: Calls
    in_flight: int
    """Calls that waited when it was done, or were made to make it happen; in the phase `stop`, those that
    waited when the stop began."""


@dataclass(slots=True, eq=False)
class Rig:
    """A scenario that is going on."""

    scenario: Scenario
    calls: Calls
    cleanup: ExitStack
    """For what `prepare` and `act` begin."""
    supervisor: Supervisor = field(init=False)
    _worker: Worker | None = None
    _calls_from: float = 0.0
    """Calls that were told since then were in flight."""
    _done_at: float = 0.0
    _ended_at: float | None = None
    _entered: anyio.Event = field(default_factory=anyio.Event)
    _leaving: anyio.Event = field(default_factory=anyio.Event)
    _line: anyio.Event = field(default_factory=anyio.Event)
    _progress: anyio.Event = field(default_factory=anyio.Event)
    _ended: anyio.Event = field(default_factory=anyio.Event)

    def __post_init__(self) -> None:
        scenario = self.scenario
        spec = ShardSpec(FAKE_MODEL, engine="fake", fault_plan=plan(*scenario.faults) or None)
        settings = scenario.settings
        if scenario.preamble:
            folder = Path(self.cleanup.enter_context(tempfile.TemporaryDirectory(prefix="gguf-worker-")))
            settings = _with_preamble(settings, scenario.preamble, folder)
        self.supervisor = Supervisor(spec, settings=settings)

    # ---- for `prepare` and `act` ----

    @property
    def pid(self) -> int:
        """Of the worker's process."""
        assert self.supervisor.pid is not None, "the process is started before anything is done to it"
        return self.supervisor.pid

    def signal(self, number: int) -> None:
        """Sends a signal to the worker as anybody could; without effect where it has ended."""
        if self._ended_at is None:
            os.kill(self.pid, number)

    def close_input(self) -> None:
        """Gives the worker the end of its stdin, and nothing else."""
        life = self.supervisor._life
        assert life is not None
        life.channel.close_input()

    # ---- the course of it ----

    async def run(self) -> Observation:
        with anyio.fail_after(DEADLINE_S):
            async with anyio.create_task_group() as life:
                life.start_soon(self._follow)
                life.start_soon(self._live)
                async with anyio.create_task_group() as callers:
                    await self._reach(callers)
                    self._do(callers)
                    await (self._ended if self.scenario.ends else self._entered).wait()
                self._leaving.set()
        return Observation(
            exit=self.supervisor.exit,
            release=self.supervisor.release,
            latency_s=self._latency_s(),
            calls=self.calls,
            in_flight=len(self._in_flight()),
        )

    async def _live(self) -> None:
        start = self.calls.new("start")
        try:
            async with self.supervisor as self._worker:
                start.tell()
                self._entered.set()
                await self._leaving.wait()
        except StartupError as error:
            start.tell(error=error)
            self._entered.set()

    async def _follow(self) -> None:
        async for event in self.supervisor.events():
            match event:
                case StderrLine():
                    self._line.set()
                case LoadProgress():
                    self._progress.set()
                case WorkerEnded():
                    self._ended_at = time.perf_counter()
                    for sign in (self._line, self._progress, self._ended):
                        sign.set()

    async def _reach(self, tasks: TaskGroup) -> None:
        """Returns when the worker is in the phase, or ended before; where it fails by itself, when all was
        done to get it there."""
        waits = self.scenario.act is not None or self.scenario.asks
        match self.scenario.phase:
            case Phase.SPAWN:
                await self._spawned()
            case Phase.HELLO if waits:
                await self._line.wait()
            case Phase.LOAD if waits:
                await self._progress.wait()
            case Phase.IDLE:
                await self._ready()
            case Phase.COMPUTE:
                await self._forward(tasks, until_computing=waits)
            case Phase.SEND:
                await self._forward(tasks, until_computing=False)
                if waits:
                    await self._line.wait()
            case Phase.STOP:
                await self._forward(tasks, until_computing=True)
                self._calls_from = self._done_at = time.perf_counter()
                self._leaving.set()
                if self.scenario.awaits_line:
                    await self._line.wait()

    async def _spawned(self) -> None:
        while self.supervisor.pid is None:
            await anyio.lowlevel.checkpoint()
        if self.scenario.awaits_line:
            await self._line.wait()

    async def _ready(self) -> Worker:
        await self._entered.wait()
        assert self._worker is not None, "the worker did not become ready"
        self._calls_from = time.perf_counter()
        if self.scenario.prepare is not None:
            self.scenario.prepare(self)
        return self._worker

    async def _forward(self, tasks: TaskGroup, *, until_computing: bool) -> None:
        worker = await self._ready()
        sessions = [(await worker.open_session()).id for _ in range(self.scenario.n_forwards)]
        self._done_at = time.perf_counter()
        for session in sessions:
            tasks.start_soon(self._forward_once, worker, session)
        while until_computing and (await worker.health()).state != "computing":
            pass

    async def _forward_once(self, worker: Worker, session: int) -> None:
        await self.calls.make(
            "forward",
            lambda: worker.forward(session=session, position=0, output=Output.NONE, tokens=[2]),
        )

    def _do(self, tasks: TaskGroup) -> None:
        if self.scenario.act is not None or self._done_at == 0.0:
            self._done_at = time.perf_counter()
        if self.scenario.act is not None:
            self.scenario.act(self)
        if self.scenario.asks:
            assert self._worker is not None
            tasks.start_soon(self.calls.make, "ping", self._worker.ping)

    def _in_flight(self) -> list[Call]:
        return [c for c in self.calls.all if c.told_at is None or c.told_at >= self._calls_from]

    def _latency_s(self) -> float | None:
        if not self.scenario.ends or self._ended_at is None:
            return None
        told = [c.told_at for c in self._in_flight() if c.told_at and c.told_at >= self._done_at]
        if self.scenario.phase is Phase.STOP:
            told = []  # it is the stop that these were told of
        return min(told, default=self._ended_at) - self._done_at


async def rehearse(scenario: Scenario) -> Observation:
    """Makes it happen. Raises TimeoutError where it does not come to an end."""
    with Calls() as calls, ExitStack() as cleanup:
        return await Rig(scenario, calls, cleanup).run()


def _with_preamble(settings: WorkerSettings, preamble: str, folder: Path) -> WorkerSettings:
    path = folder / "worker"
    worker = shlex.quote(str(find_executable(settings.executable)))
    path.write_text(f'#!/bin/sh\n{preamble}\nexec {worker} "$@"\n')
    path.chmod(0o755)
    return replace(settings, executable=path)
