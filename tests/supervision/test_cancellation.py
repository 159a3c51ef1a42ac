"""A supervisor may be cancelled at every point where anything waits: nothing is left, and nobody hangs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass, replace
from typing import Any

import anyio
import pytest

from fakes import PROMPT, SETTINGS, spec
from gguf_worker import Supervisor, WorkerState, inspect
from gguf_worker.errors import WorkerDied
from gguf_worker.testing import Baseline

UVLOOP = {"use_uvloop": True}
LOOPS = pytest.mark.parametrize("options", [{}, UVLOOP], ids=["asyncio", "uvloop"])
DEADLINE_S = 30


@dataclass
class Steps:
    """Counts how often any task of the loop waits, and acts at one of these moments."""

    at: int
    act: Callable[[], object] = lambda: None
    count: int = 0

    def step(self) -> None:
        self.count += 1
        if self.count == self.at:
            self.act()

    def install(self) -> None:
        """Watches every task that is made from now on in the running loop."""
        asyncio.get_running_loop().set_task_factory(self._make_task)

    def _make_task(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(_run(Stepped(work, self)), loop=loop, **options)


@dataclass
class Stepped:
    """Awaits something, and tells of each time that it waits."""

    work: Coroutine[Any, Any, Any]
    steps: Steps

    def __await__(self) -> Generator[Any, Any, Any]:
        waiting = self.work.__await__()
        try:
            wanted = next(waiting)
            while True:
                self.steps.step()
                try:
                    got = yield wanted
                except BaseException as error:
                    wanted = waiting.throw(error)
                else:
                    wanted = waiting.send(got)
        except StopIteration as done:
            return done.value


async def _run(stepped: Stepped) -> Any:
    return await stepped


async def live(supervisor: Supervisor) -> None:
    """A whole life: start, a session, a death, a restart, a stop."""
    async with supervisor as worker:
        async with await worker.open_session() as session:
            await session.forward(tokens=[2, 3], output="token")
        os.kill(worker.pid, signal.SIGKILL)
        try:
            while True:
                await worker.ping()
        except WorkerDied:
            await (await supervisor.wait_ready()).ping()


@LOOPS
def test_supervisor_is_cancelled_at_every_step_of_its_life(
    options: dict[str, bool], note: Callable[[str], None]
) -> None:
    """A scope that is cancelled whenever any task waits: the worker is stopped, reaped and measured."""
    steps_taken = 0

    async def scenario(at: int) -> bool:
        supervisor = Supervisor(spec(), settings=replace(SETTINGS, restart=PROMPT))
        steps = Steps(at)
        with anyio.fail_after(DEADLINE_S), anyio.CancelScope() as scope:
            steps.act = scope.cancel
            steps.install()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(live, supervisor)
        assert supervisor.state in (WorkerState.STOPPED, WorkerState.STARTING)
        assert supervisor.release is None or supervisor.release.complete
        assert len(asyncio.all_tasks()) == 1
        return scope.cancel_called

    while True:
        with Baseline():
            if not anyio.run(scenario, steps_taken + 1, backend_options=options):
                break
        steps_taken += 1
    assert steps_taken > 30
    note(f"cancelled at each of {steps_taken} steps of a supervisor's life ({options or 'asyncio'})")


async def is_cancelled_at(work: Callable[[], Awaitable[object]], at: int) -> bool:
    """Runs something in a task that is cancelled, as asyncio does it, when its own n-th wait begins."""
    steps = Steps(at)

    async def run() -> None:
        await work()

    task = asyncio.ensure_future(_run(Stepped(run(), steps)))
    steps.act = task.cancel
    with anyio.fail_after(DEADLINE_S):
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return task.cancelled()


@LOOPS
@pytest.mark.parametrize("what", ["supervisor", "inspect"])
def test_task_that_is_cancelled_natively_leaves_nothing(options: dict[str, bool], what: str) -> None:
    """`Task.cancel` at each wait of the caller's own task, no scope being asked."""
    supervisors: list[Supervisor] = []

    async def work() -> None:
        if what == "inspect":
            await inspect(spec().model, engine="fake", settings=SETTINGS)
        else:
            supervisors.append(Supervisor(spec(), settings=replace(SETTINGS, restart=PROMPT)))
            await live(supervisors[-1])

    at = 0
    while True:
        at += 1
        with Baseline():
            if not anyio.run(is_cancelled_at, work, at, backend_options=options):
                break
    assert at > 4
    assert all(supervisor.release is None or supervisor.release.complete for supervisor in supervisors)
