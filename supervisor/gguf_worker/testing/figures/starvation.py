"""Is a worker ever taken for hanging because its machine is busy?"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio

from gguf_worker.errors import StartupError, WorkerDied
from gguf_worker.protocol.messages import Output
from gguf_worker.supervision.events import WorkerEnded
from gguf_worker.supervision.policy import RestartPolicy
from gguf_worker.supervision.settings import WorkerSettings
from gguf_worker.supervision.spec import ShardSpec
from gguf_worker.supervision.supervisor import Supervisor
from gguf_worker.supervision.worker import Worker
from gguf_worker.testing.figures.figure import Figure, milliseconds, percentile

BUSY_PER_PROCESSOR = 3
COMPUTE_STALL_S = 5.0
LOAD_STALL_S = 15.0
"""Parts of the defaults: if there is no false kill with these, there is none with those. A load has the
longest pause, while the library reads the vocabulary and reports nothing."""
LIFE_S = 15.0
"""After so long a worker is stopped and another one loaded, so that loads are starved as well."""
PING_EVERY_S = 0.1
SHORTEST_S = 10.0
"""Of computing, however long the load took."""
PROMPT_ROWS = 64
DECODED = 64


@dataclass(slots=True)
class Work:
    """What was got done on the starved machine."""

    tokens: int = 0
    gaps_s: list[float] = field(default_factory=list)
    """Between one token and the next."""
    pings_s: list[float] = field(default_factory=list)
    loads_s: list[float] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)


async def starved_machine(model: Path, duration_s: float) -> Figure:
    """A real model is loaded and computes while more busy processes than processors run."""
    work = Work()
    processors = os.cpu_count() or 1
    with _busy(BUSY_PER_PROCESSOR * processors):
        until = time.monotonic() + duration_s
        while time.monotonic() < until:
            await _live(ShardSpec(str(model)), min(LIFE_S, until - time.monotonic()), work)
    false = {cause: n for cause, n in work.ends.items() if cause != "clean"}
    return Figure(
        name="starved machine",
        promise="no worker is killed because its machine is busy",
        values={
            "seconds": duration_s,
            "processors": processors,
            "busy_processes": BUSY_PER_PROCESSOR * processors,
            "compute_stall_timeout_s": COMPUTE_STALL_S,
            "load_stall_timeout_s": LOAD_STALL_S,
            "loads": len(work.loads_s),
            "slowest_load_s": round(max(work.loads_s, default=0.0), 2),
            "tokens": work.tokens,
            "longest_gap_ms": milliseconds(max(work.gaps_s, default=0.0)),
            "ping_p99_ms": milliseconds(percentile(work.pings_s, 99)) if work.pings_s else 0.0,
            "false_kills": sum(false.values()),
        },
        problems=tuple(f"{n} workers ended: {cause}" for cause, n in false.items())
        + (() if work.tokens else ("no token was computed",)),
    )


async def _live(spec: ShardSpec, seconds: float, work: Work) -> None:
    settings = replace(
        WorkerSettings(),
        load_stall_timeout_s=LOAD_STALL_S,
        compute_stall_timeout_s=COMPUTE_STALL_S,
        restart=RestartPolicy.never(),
    )
    supervisor = Supervisor(spec, settings=settings)
    with contextlib.suppress(StartupError, WorkerDied):  # it is counted below
        async with supervisor as worker:
            work.loads_s.append(worker.load_s)
            await _compute(worker, max(SHORTEST_S, seconds - worker.load_s), work)
    async for event in supervisor.events():
        if isinstance(event, WorkerEnded):
            work.ends[event.exit.cause] += 1


async def _compute(worker: Worker, seconds: float, work: Work) -> None:
    """Decodes for some time; raises WorkerDied."""
    deaths: list[WorkerDied] = []

    async def ping() -> None:
        with contextlib.suppress(WorkerDied):  # which the decode meets as well
            while True:
                work.pings_s.append(await worker.ping())
                await anyio.sleep(PING_EVERY_S)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ping)
        with anyio.move_on_after(seconds):
            try:
                await _decode(worker, work)
            except WorkerDied as death:
                deaths.append(death)
        tasks.cancel_scope.cancel()
    if deaths:
        raise deaths[0]


async def _decode(worker: Worker, work: Work) -> None:
    prompt = [2 + 7 * i % (worker.model.n_vocab - 2) for i in range(PROMPT_ROWS)]
    while True:
        async with await worker.open_session() as session:
            result = await session.forward(tokens=prompt, output=Output.TOKEN)
            for _ in range(DECODED):
                began = time.perf_counter()
                result = await session.forward(tokens=[result.token], output=Output.TOKEN)
                work.gaps_s.append(time.perf_counter() - began)
                work.tokens += 1


@contextmanager
def _busy(count: int) -> Iterator[None]:
    """Processes that never pause."""
    with ExitStack() as stack:
        for _ in range(count):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]))
            stack.callback(process.kill)
        yield
