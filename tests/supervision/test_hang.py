"""Hangs are found by progress: what stands still is replaced, what is slow is left alone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace

import anyio
import pytest

from fakes import PROMPT, SETTINGS, spec
from gguf_worker import ExitCause, StopDeadlines, Supervisor, Worker
from gguf_worker.errors import GgufWorkerError, RequestTimeout, Unreleased, WorkerDied
from gguf_worker.process.child import ChildProcess

pytestmark = pytest.mark.anyio

STALL_S = 0.4
LIMIT = replace(SETTINGS, load_stall_timeout_s=STALL_S, compute_stall_timeout_s=STALL_S, restart=PROMPT)
FOUND_WITHIN = 1.5
"""A hang is found within so many times the stall timeout (`compute_stall_timeout_s` says so); the tests
allow a busy machine ten times more."""


async def found_hanging(worker: Worker, note: Callable[[str], None], what: str) -> None:
    """Waits until the worker was ended as a hang, and says how long that took."""
    began = time.monotonic()
    with anyio.fail_after(10 * FOUND_WITHIN * STALL_S):
        report = await worker.wait_for_end()
    assert report.cause is ExitCause.HANG
    assert report.signal == signal.SIGKILL
    assert "no progress" in report.detail
    note(f"{what}: found after {time.monotonic() - began:.2f} s of {STALL_S} s without progress")


@pytest.mark.parametrize("plan", ["hang@1", "hang-hard@1", "hold@result"])
async def test_computation_that_stands_still_is_ended_and_replaced(
    plan: str, note: Callable[[str], None]
) -> None:
    """A step that makes no progress, whether it heeds a cancel or not, and an answer that is never sent."""
    supervisor = Supervisor(spec(fault_plan=plan), settings=LIMIT)
    async with supervisor as worker:
        session = await worker.open_session()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(found_hanging, worker, note, plan)
            with pytest.raises(WorkerDied) as caught:
                await session.forward(tokens=[2], output="none")
        assert caught.value.exit.cause is ExitCause.HANG
        assert "forward made no progress for 0.4 s" in caught.value.message
        with anyio.fail_after(20):
            assert (await supervisor.wait_ready()).pid != worker.pid


async def test_stopped_process_is_ended_and_replaced(note: Callable[[str], None]) -> None:
    """SIGSTOP in mid-computation: neither the step nor the control thread moves."""
    supervisor = Supervisor(spec(fault_plan="slow:3600000"), settings=LIMIT)
    async with supervisor as worker:
        session = await worker.open_session()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_expect_death, worker, session.id)
            with anyio.fail_after(10):
                while (await worker.health()).state != "computing":
                    pass
            os.kill(worker.pid, signal.SIGSTOP)
            await found_hanging(worker, note, "SIGSTOP")
        assert worker.exit is not None
        assert "answered nothing else" in worker.exit.detail
        with anyio.fail_after(20):
            assert (await supervisor.wait_ready()).pid != worker.pid


async def test_idle_process_that_was_stopped_is_found_by_whoever_asks(note: Callable[[str], None]) -> None:
    """A worker that owes nothing does not hang; once it owes a pong and gives none, it does, also when the
    one who asked has gone."""
    settings = replace(LIMIT, control_timeout_s=0.05)
    supervisor = Supervisor(spec(), settings=settings)
    async with supervisor as worker:
        os.kill(worker.pid, signal.SIGSTOP)
        with pytest.raises(RequestTimeout):
            await worker.ping()
        await found_hanging(worker, note, "idle SIGSTOP, after a ping")


async def test_slow_computation_is_no_hang() -> None:
    """A step that takes many times the stall timeout, but moves, is waited for."""
    slow = f"slow:{int(STALL_S * 4 * 1000)}"
    async with Supervisor(spec(fault_plan=slow), settings=LIMIT) as worker:
        session = await worker.open_session()
        assert (await session.forward(tokens=[2], output="none")).length == 1
        assert worker.exit is None


async def test_load_that_stands_still_is_ended_and_tried_again() -> None:
    """A hang while loading is a death like others: it is tried again, and given up with its cause."""
    supervisor = Supervisor(spec(fault_plan="load-hang"), settings=LIMIT)
    with pytest.raises(GgufWorkerError, match=r"hang \(4 times\)"):
        await supervisor.__aenter__()
    assert supervisor.generation == PROMPT.max_restarts + 1


async def _expect_death(worker: Worker, session: int) -> None:
    with pytest.raises(WorkerDied):
        await worker.forward(session=session, position=0, tokens=[2], output="none")


@pytest.mark.parametrize("plan", ["hang-hard@1", "load-hang"])
async def test_worker_that_not_even_a_kill_ends_is_given_up(
    plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process stuck in the kernel: nobody waits for it for ever, and none is started beside it."""
    stop = StopDeadlines(request_s=0.05, eof_s=0.05, terminate_s=0.05, kill_s=0.2)
    supervisor = Supervisor(spec(fault_plan=plan), settings=replace(LIMIT, stop=stop))
    monkeypatch.setattr(ChildProcess, "signal_group", lambda *_: None)
    with anyio.fail_after(20), pytest.raises(Unreleased) as caught:
        await _use(supervisor)
    assert f"process {supervisor.pid} has not ended" in caught.value.message
    assert supervisor.generation == 1
    monkeypatch.undo()
    _end(supervisor)


async def _use(supervisor: Supervisor) -> None:
    """Meets the hang in a step, if not in the load, and waits for what follows."""
    async with supervisor as worker:
        session = await worker.open_session()
        with pytest.raises(WorkerDied, match="SIGKILL did not end it"):
            await session.forward(tokens=[2], output="none")
        await supervisor.wait_ready()


def _end(supervisor: Supervisor) -> None:
    """Really ends the process that the supervisor could not."""
    assert supervisor._life is not None
    supervisor._life._child.signal_group(signal.SIGKILL)
    supervisor._life._child._popen.wait(timeout=20)
