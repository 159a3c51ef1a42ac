"""Workers that die, hang or are killed: each pending request fails once and says why."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace

import anyio
import anyio.lowlevel
import pytest

from fakes import IMPATIENT, SETTINGS, spec
from gguf_worker import ExitCause, Health, StopRung, Supervisor, Worker
from gguf_worker.errors import (
    GgufWorkerError,
    LoadRejected,
    RequestError,
    RequestTimeout,
    StartupError,
    WorkerDied,
)

pytestmark = pytest.mark.anyio

REQUESTS = 20


async def forward_first(worker: Worker) -> None:
    async with await worker.open_session() as session:
        await session.forward(tokens=[2], output="none")


async def test_killed_worker_fails_each_pending_request_once(note: Callable[[str], None]) -> None:
    """SIGKILL with requests in flight: each is resolved once with WorkerDied, signal and stderr included."""
    outcomes: list[GgufWorkerError] = []
    told_at: list[float] = []

    async def ask(worker: Worker) -> None:
        try:
            await worker.tokenize("never answered")
        except GgufWorkerError as error:
            told_at.append(time.perf_counter())
            outcomes.append(error)

    async with Supervisor(spec(fault_plan="hang@1"), settings=SETTINGS) as worker:
        async with anyio.create_task_group() as tasks:
            session = await worker.open_session()
            tasks.start_soon(expect_death, worker, session.id)
            await wait_for_health(worker, lambda health: health.state == "computing")
            for _ in range(REQUESTS):
                tasks.start_soon(ask, worker)
            await wait_for_health(worker, lambda health: health.queued == REQUESTS)
            killed_at = time.perf_counter()
            os.kill(worker.pid, signal.SIGKILL)
        assert len(outcomes) == REQUESTS
        for outcome in outcomes:
            assert isinstance(outcome, WorkerDied)
            assert (outcome.exit.cause, outcome.exit.signal) == (ExitCause.SIGNAL_OTHER, signal.SIGKILL)
        assert len({id(outcome) for outcome in outcomes}) == REQUESTS
        assert worker.state == "failed"
        with pytest.raises(WorkerDied):
            await worker.ping()
    note(f"SIGKILL to the first failed request: {(min(told_at) - killed_at) * 1e3:.2f} ms")


async def wait_for_health(worker: Worker, condition: Callable[[Health], bool]) -> None:
    with anyio.fail_after(10):
        while not condition(await worker.health()):
            pass


async def expect_death(worker: Worker, session: int) -> None:
    with pytest.raises(WorkerDied):
        await worker.forward(session=session, position=0, tokens=[2], output="none")


@pytest.mark.parametrize(
    ("plan", "cause", "exit_code", "number"),
    [
        ("crash@1", ExitCause.SIGNAL_OTHER, None, signal.SIGABRT),
        ("segv@1", ExitCause.SIGNAL_OTHER, None, signal.SIGSEGV),
        ("exit:3@1", ExitCause.EXIT_CODE, 3, None),
        ("exit:0@1", ExitCause.EXIT_CODE, 0, None),
        ("stderr-flood@1,crash@1", ExitCause.SIGNAL_OTHER, None, signal.SIGABRT),
    ],
)
async def test_worker_that_dies_in_a_step_says_how(
    plan: str, cause: ExitCause, exit_code: int | None, number: int | None
) -> None:
    """The pending forward fails with the worker's exit code or signal and its last stderr lines."""
    supervisor = Supervisor(spec(fault_plan=plan), settings=SETTINGS)
    async with supervisor as worker:
        with pytest.raises(WorkerDied) as caught:
            await forward_first(worker)
    report = caught.value.exit
    assert (report.cause, report.exit_code, report.signal) == (cause, exit_code, number)
    assert len(report.stderr_tail) <= SETTINGS.stderr_lines
    if "flood" in plan:
        assert len(report.stderr_tail) == SETTINGS.stderr_lines
    assert supervisor.release is not None
    assert supervisor.release.unreleased == ()


async def test_worker_dying_in_the_second_step_keeps_the_first_answer() -> None:
    """What was answered before the death stays answered."""
    async with Supervisor(spec(fault_plan="crash@2"), settings=SETTINGS) as worker:
        session = await worker.open_session()
        assert (await session.forward(tokens=[2], output="token")).length == 1
        with pytest.raises(WorkerDied):
            await session.forward(tokens=[3], output="token")


async def test_step_that_hangs_hard_times_out_and_is_stopped_by_force() -> None:
    """A step that ignores cancel costs its caller the deadline; stopping needs a signal, and gets it."""
    settings = replace(SETTINGS, request_timeout_s=0.3, stop=IMPATIENT)
    supervisor = Supervisor(spec(fault_plan="hang-hard@1"), settings=settings)
    async with supervisor as worker:
        session = await worker.open_session()
        with pytest.raises(RequestTimeout):
            await session.forward(tokens=[2], output="none")
        assert await worker.ping() < 10
    assert supervisor.exit is not None
    assert supervisor.exit.stop_rung in (StopRung.TERMINATE, StopRung.KILL)
    assert supervisor.exit.cause is ExitCause.SIGNAL_OURS


async def test_step_with_a_nan_fails_alone() -> None:
    """A non-finite value is an error at the stage that made it; the worker goes on."""
    async with Supervisor(spec((0, 6), fault_plan="nan@1"), settings=SETTINGS) as worker:
        session = await worker.open_session()
        with pytest.raises(RequestError) as caught:
            await session.forward(tokens=[2], output="hidden")
        assert caught.value.code == "non_finite"
        assert (await session.forward(tokens=[2], output="hidden")).length == 1


async def test_load_that_fails_is_rejected_with_the_workers_words() -> None:
    """A refused load is LoadRejected with the engine's code; nothing is left, nothing is tried again."""
    supervisor = Supervisor(spec(fault_plan="load-fail"), settings=SETTINGS)
    with pytest.raises(LoadRejected) as caught:
        async with supervisor:
            pytest.fail("the worker must not become ready")
    assert caught.value.code == "backend"
    assert caught.value.exit is not None
    assert (caught.value.exit.cause, caught.value.exit.exit_code) == (ExitCause.LOAD_REJECTED, 0)
    assert supervisor.state == "failed"


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"layers": (4, 40)}, "range", "40"),
        ({"layers": (4, 4)}, "range", "4"),
        ({"artifact": "0" * 64}, "identity", "0" * 64),
        ({"fault_plan": "crsh@1"}, "argument", "crsh"),
    ],
)
async def test_load_of_what_cannot_be_is_rejected(changes: dict[str, object], code: str, words: str) -> None:
    """Each rejection has the engine's code and names the thing."""
    with pytest.raises(StartupError) as caught:
        async with Supervisor(replace(spec(), **changes), settings=SETTINGS):  # type: ignore[arg-type]
            pytest.fail("the worker must not become ready")
    assert caught.value.code == code
    assert words in caught.value.message + str(caught.value.fields)


async def test_load_that_hangs_is_killed_for_want_of_progress() -> None:
    """A load without any progress ends as a hang, also when the worker itself still answers."""
    settings = replace(SETTINGS, load_stall_timeout_s=0.4)
    with pytest.raises(StartupError) as caught:
        async with Supervisor(spec(fault_plan="load-hang"), settings=settings):
            pytest.fail("the worker must not become ready")
    assert caught.value.exit is not None
    assert caught.value.exit.cause is ExitCause.HANG


async def test_load_that_is_slow_is_waited_for() -> None:
    """A load that takes longer than the stall deadline, but moves, becomes ready."""
    settings = replace(SETTINGS, load_stall_timeout_s=0.4)
    async with Supervisor(spec(fault_plan="load-slow:1000"), settings=settings) as worker:
        assert worker.load_s > 0.9


async def test_load_that_crashes_says_how() -> None:
    """A worker that dies while it loads is a StartupError with its signal."""
    with pytest.raises(StartupError) as caught:
        async with Supervisor(spec(fault_plan="load-crash"), settings=SETTINGS):
            pytest.fail("the worker must not become ready")
    assert caught.value.exit is not None
    assert caught.value.exit.signal == signal.SIGABRT


async def test_cancel_while_loading_leaves_nothing() -> None:
    """A start that is cancelled stops its worker before it gives way."""
    supervisor = Supervisor(spec(fault_plan="load-slow:60000"), settings=SETTINGS)

    async def start() -> None:
        async with supervisor:
            pytest.fail("the worker must not become ready")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(start)
        with anyio.fail_after(10):
            while supervisor.state != "loading":
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert supervisor.state == "stopped"
    assert supervisor.exit is not None
    assert supervisor.exit.cause is ExitCause.CLEAN
    assert supervisor.release is not None
    assert supervisor.release.complete


async def test_body_that_raises_still_stops_the_worker() -> None:
    """An error in the body is passed on as it is, after the worker was released."""
    supervisor = Supervisor(spec(), settings=SETTINGS)
    with pytest.raises(KeyError):
        async with supervisor:
            raise KeyError("body")
    assert supervisor.release is not None
    assert supervisor.release.complete


async def test_cancelled_body_still_stops_the_worker() -> None:
    """A cancelled body is left only after the worker was asked, went and was measured."""
    supervisor = Supervisor(spec(), settings=SETTINGS)
    with anyio.CancelScope() as scope:
        async with supervisor:
            scope.cancel()
            await anyio.sleep_forever()
    assert supervisor.exit is not None
    assert supervisor.exit.stop_rung is StopRung.REQUEST
    assert supervisor.release is not None
    assert supervisor.release.bye is not None
