"""How long does a caller wait for the news of a death?"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, replace

import anyio

from gguf_worker.errors import WorkerDied
from gguf_worker.protocol.messages import Output
from gguf_worker.supervision.policy import RestartPolicy
from gguf_worker.supervision.settings import WorkerSettings
from gguf_worker.supervision.spec import ShardSpec
from gguf_worker.supervision.supervisor import Supervisor
from gguf_worker.supervision.worker import Worker
from gguf_worker.testing.faults import FAKE_MODEL, FOREVER_MS, plan, slow
from gguf_worker.testing.figures.figure import Figure, milliseconds, percentile
from gguf_worker.testing.figures.observer import Observer

LIMIT_MS = 10.0

AT_ONCE = RestartPolicy(max_restarts=1_000_000, backoff_initial_s=0.0, backoff_max_s=0.0)
"""Another worker follows each death, without a pause and without an end."""


@dataclass(frozen=True, slots=True)
class Kill:
    """When the caller of one killed worker knew of it, in milliseconds."""

    after_signal_ms: float
    """With what the kernel had to do first: to run the worker once more, and to tear it down."""
    after_end_ms: float
    """Without; 0 where the caller knew before the observer did."""


async def detection_latency(kills: int) -> Figure:
    """From SIGKILL, and from the end of the process, to the pending request that fails (Linux)."""
    spec = ShardSpec(FAKE_MODEL, engine="fake", fault_plan=plan(slow(FOREVER_MS)))
    supervisor = Supervisor(spec, settings=replace(WorkerSettings(), restart=AT_ONCE))
    found = []
    with Observer() as observer:
        async with supervisor:
            for _ in range(kills):
                found.append(await _kill_once(await supervisor.wait_ready(), observer))
    after_signal = [kill.after_signal_ms for kill in found]
    after_end = [kill.after_end_ms for kill in found]
    p99 = percentile(after_end, 99)
    return Figure(
        name="detection latency",
        promise=f"callers know of a killed worker within {LIMIT_MS:g} ms p99 of its end",
        values={
            "kills": kills,
            "after_end_p50_ms": percentile(after_end, 50),
            "after_end_p99_ms": p99,
            "after_end_max_ms": max(after_end),
            "after_signal_p50_ms": percentile(after_signal, 50),
            "after_signal_p99_ms": percentile(after_signal, 99),
            "after_signal_max_ms": max(after_signal),
        },
        problems=() if p99 <= LIMIT_MS else (f"p99 is {p99} ms",),
    )


async def _kill_once(worker: Worker, observer: Observer) -> Kill:
    told_at = 0.0

    async def forward(session: int) -> None:
        nonlocal told_at
        try:
            await worker.forward(session=session, position=0, output=Output.NONE, tokens=[2])
        except WorkerDied:
            told_at = time.perf_counter()

    session = await worker.open_session()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(forward, session.id)
        while (await worker.health()).state != "computing":
            pass
        observer.watch(worker.pid)
        killed_at = time.perf_counter()
        os.kill(worker.pid, signal.SIGKILL)
    return Kill(
        after_signal_ms=milliseconds(told_at - killed_at),
        after_end_ms=milliseconds(max(0.0, told_at - observer.ended_at())),
    )
