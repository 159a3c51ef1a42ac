"""A worker that dies is replaced by one of the same identity, until that does not help."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from fakes import IMPATIENT, PROMPT, SETTINGS, spec
from gguf_worker import (
    EventReader,
    ExitCause,
    GaveUp,
    Recipe,
    RestartPolicy,
    RestartScheduled,
    StateChanged,
    StderrLine,
    StopDeadlines,
    StopRung,
    Supervisor,
    Worker,
    WorkerEnded,
    WorkerReady,
    WorkerReleased,
    WorkerState,
)
from gguf_worker.errors import (
    ExecutableNotFound,
    GivenUp,
    IdentityMismatch,
    LoadRejected,
    StartupError,
    WorkerDied,
    WorkerStopped,
)
from misbehaving import executable

pytestmark = pytest.mark.anyio

RESTARTING = replace(SETTINGS, restart=PROMPT)


async def kill(worker: Worker) -> None:
    os.kill(worker.pid, signal.SIGKILL)
    with anyio.fail_after(20):
        await worker.wait_for_end()


async def next_ready(supervisor: Supervisor) -> Worker:
    with anyio.fail_after(20):
        return await supervisor.wait_ready()


async def test_killed_worker_is_replaced_by_one_of_the_same_identity() -> None:
    """Another process, the same identity in every field, the same answers."""
    supervisor = Supervisor(spec(recipe=Recipe(n_threads=0)), settings=RESTARTING)
    async with supervisor as first:
        async with await first.open_session() as session:
            before = await session.forward(tokens=[2, 3, 4], output="logits")
        await kill(first)
        second = await next_ready(supervisor)
        assert second.pid != first.pid
        assert second.identity == first.identity
        assert (supervisor.worker, supervisor.generation, supervisor.restarts) == (second, 2, 1)
        assert f"pid={second.pid}" in repr(supervisor)
        assert "restarts=1" in repr(supervisor)
        async with await second.open_session() as session:
            after = await session.forward(tokens=[2, 3, 4], output="logits")
        assert after.logits == before.logits


async def test_session_of_a_dead_worker_fails_once_and_is_opened_again() -> None:
    """A session belongs to one process: its pending request fails once, later ones say the same, and it never
    reaches the process that took the place."""
    supervisor = Supervisor(spec(fault_plan="hang@1"), settings=RESTARTING)
    async with supervisor as first:
        session = await first.open_session()
        outcomes: list[WorkerDied] = []

        async def forward() -> None:
            try:
                await session.forward(tokens=[2], output="none")
            except WorkerDied as death:
                outcomes.append(death)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(forward)
            with anyio.fail_after(10):
                while (await first.health()).state != "computing":
                    pass
            await kill(first)
        assert [outcome.exit.pid for outcome in outcomes] == [first.pid]
        second = await next_ready(supervisor)
        for _ in range(2):
            with pytest.raises(WorkerDied) as caught:
                await session.forward(tokens=[2], output="none")
            assert caught.value.exit.pid == first.pid
        assert (await second.health()).sessions == 0
        async with await second.open_session() as again:
            assert again.position == 0


async def test_crash_loop_is_given_up_after_exactly_n_restarts_and_says_why() -> None:
    """A worker that dies in each of its lives is started N times more, and the reason has the causes."""
    supervisor = Supervisor(spec(fault_plan="load-crash"), settings=RESTARTING)
    with pytest.raises(GivenUp) as caught:
        async with supervisor:
            pytest.fail("the worker must not become ready")
    assert (supervisor.generation, supervisor.restarts) == (PROMPT.max_restarts + 1, PROMPT.max_restarts)
    assert caught.value.causes == ("signal_other SIGABRT",) * 4
    assert "3 restarts in a row without a stable run; causes: signal_other SIGABRT (4 times)" in str(
        caught.value
    )
    assert caught.value.exit is not None
    assert caught.value.exit.cause is ExitCause.SIGNAL_OTHER
    assert supervisor.failure is caught.value
    assert supervisor.state is WorkerState.FAILED


async def test_worker_that_dies_too_often_is_given_up_until_a_reset() -> None:
    """Whoever waits is told; a reset starts it again."""
    supervisor = Supervisor(spec(), settings=RESTARTING)
    async with supervisor as worker:
        for _ in range(PROMPT.max_restarts):
            await kill(worker)
            worker = await next_ready(supervisor)
        await kill(worker)
        assert supervisor.state == "failed"
        with pytest.raises(GivenUp, match="signal_other SIGKILL"):
            await supervisor.wait_ready()
        with pytest.raises(WorkerDied):
            await supervisor.health()
        supervisor.reset()
        worker = await next_ready(supervisor)
        assert supervisor.failure is None
        assert (supervisor.restarts, supervisor.state) == (PROMPT.max_restarts + 1, "ready")
        assert await worker.ping() > 0
    assert supervisor.state == "stopped"


async def test_reset_ends_a_backoff_at_once() -> None:
    """Somebody who does not want to wait need not."""
    patient = RestartPolicy(backoff_initial_s=3600, backoff_max_s=3600)
    supervisor = Supervisor(spec(), settings=replace(SETTINGS, restart=patient))
    async with supervisor as worker:
        events = supervisor.events(from_start=False)
        await kill(worker)
        with anyio.fail_after(20):
            scheduled = await events.wait_for(RestartScheduled)
        assert scheduled.delay_s > 1000
        assert supervisor.state is WorkerState.BACKOFF
        supervisor.reset()
        assert (await next_ready(supervisor)).pid != worker.pid


async def test_leaving_in_a_backoff_does_not_wait_for_it() -> None:
    """A supervisor can be left at any time."""
    patient = RestartPolicy(backoff_initial_s=3600, backoff_max_s=3600)
    supervisor = Supervisor(spec(), settings=replace(SETTINGS, restart=patient))
    with anyio.fail_after(20):
        async with supervisor as worker:
            await kill(worker)
    assert supervisor.state is WorkerState.STOPPED
    with pytest.raises(WorkerStopped):
        await supervisor.wait_ready()


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [("attests_another_recipe", IdentityMismatch), ("attests_fewer_layers", IdentityMismatch)],
)
async def test_worker_of_another_identity_is_never_tried_again(
    behaviour: str, error: type[StartupError], tmp_path: Path
) -> None:
    """What it attests will not change by asking again."""
    settings = replace(RESTARTING, executable=executable(tmp_path, behaviour))
    supervisor = Supervisor(spec(), settings=settings)
    with pytest.raises(error):
        await supervisor.__aenter__()
    assert supervisor.generation == 1


@pytest.mark.parametrize(
    ("changes", "settings", "error"),
    [
        ({"fault_plan": "load-fail"}, {}, LoadRejected),
        ({"model": "fake:layers=0"}, {}, LoadRejected),
        ({"artifact": "0" * 64}, {}, LoadRejected),
        ({}, {"executable": "/nowhere/gguf-shard-worker"}, ExecutableNotFound),
    ],
    ids=["load", "malformed", "artifact", "executable"],
)
async def test_start_that_cannot_get_better_is_never_tried_again(
    changes: dict[str, object], settings: dict[str, object], error: type[StartupError]
) -> None:
    """A rejected load, a malformed artifact, a missing executable: the error is told as it is."""
    supervisor = Supervisor(replace(spec(), **changes), settings=replace(RESTARTING, **settings))  # type: ignore[arg-type]
    with pytest.raises(error) as caught:
        await supervisor.__aenter__()
    assert type(caught.value) is error
    assert (supervisor.generation, supervisor.restarts) == (1, 0)
    assert supervisor.failure is caught.value


async def test_executable_that_is_being_written_is_tried_again(tmp_path: Path) -> None:
    """An upgrade in place is over soon."""
    program = executable(tmp_path, "good")
    patient = RestartPolicy(backoff_initial_s=3600, backoff_max_s=3600)
    supervisor = Supervisor(spec(), settings=replace(SETTINGS, executable=program, restart=patient))
    events = supervisor.events()

    async def enter() -> None:
        async with supervisor as worker:
            assert worker.pid == supervisor.pid

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            with program.open("ab"):
                tasks.start_soon(enter)
                assert "busy" in (await events.wait_for(RestartScheduled)).reason
            supervisor.reset()
    assert supervisor.generation == 2


async def test_events_tell_a_death_and_its_restart_in_order() -> None:
    """Every step of a worker's life is an event, with the process that it is about."""
    supervisor = Supervisor(spec(), settings=RESTARTING)
    async with supervisor as first:
        await kill(first)
        second = await next_ready(supervisor)
    events = [event async for event in supervisor.events()]
    notable = [event for event in events if not isinstance(event, StderrLine)]
    told = [
        (type(event), event.stamp.generation)
        for event in notable
        if isinstance(event, WorkerReady | WorkerEnded | WorkerReleased | RestartScheduled)
    ]
    assert told == [
        (WorkerReady, 1),
        (WorkerEnded, 1),
        (WorkerReleased, 1),
        (RestartScheduled, 1),
        (WorkerReady, 2),
        (WorkerEnded, 2),
        (WorkerReleased, 2),
    ]
    states = [event.state.value for event in notable if isinstance(event, StateChanged)]
    assert states == ["loading", "ready", "backoff", "starting", "loading", "ready", "draining", "stopped"]
    ends = [event for event in notable if isinstance(event, WorkerEnded)]
    assert [(event.stamp.pid, event.exit.cause) for event in ends] == [
        (first.pid, ExitCause.SIGNAL_OTHER),
        (second.pid, ExitCause.CLEAN),
    ]
    assert all(event.release.complete for event in notable if isinstance(event, WorkerReleased))


async def test_events_tell_why_a_worker_was_given_up() -> None:
    """The last event of a failed start has the reason and every cause."""
    supervisor = Supervisor(spec(fault_plan="load-crash"), settings=RESTARTING)
    with pytest.raises(GivenUp):
        await supervisor.__aenter__()
    events = [event async for event in supervisor.events()]
    gave_up = [event for event in events if isinstance(event, GaveUp)]
    assert len(gave_up) == 1
    assert gave_up[0].causes == ("signal_other SIGABRT",) * 4


async def test_lines_of_stderr_are_events_with_the_pid() -> None:
    """Whoever follows the events sees what each process wrote."""
    supervisor = Supervisor(spec(fault_plan="load-slow:1,crash@1"), settings=RESTARTING)
    async with supervisor as worker:
        with pytest.raises(WorkerDied):
            await (await worker.open_session()).forward(tokens=[2], output="none")
        second = await next_ready(supervisor)
        os.kill(second.pid, signal.SIGTERM)
        await second.wait_for_end()
    lines = [event async for event in supervisor.events() if isinstance(event, StderrLine)]
    assert {line.stamp.pid for line in lines} <= {worker.pid, second.pid}
    assert (await supervisor.metrics()).stderr_lines == len(lines)


async def test_metrics_add_up_over_the_lives_of_a_worker() -> None:
    """Counts never fall when another process begins from zero; the rest is the newest one's."""
    supervisor = Supervisor(spec(), settings=RESTARTING)
    before = await supervisor.metrics()
    assert (before.state, before.pid, before.health, before.identity) == ("starting", None, None, None)
    async with supervisor as first:
        await (await first.open_session()).forward(tokens=[2, 3, 4], output="token")
        once = await supervisor.metrics()
        assert (once.totals.rows, once.totals.tokens_sampled, once.health_is_fresh) == (3, 1, True)
        assert once.health is not None
        assert (once.health.sessions, once.health.kv_cells_used, once.restarts) == (1, 3, 0)
        assert once.health.rss_bytes > 0
        assert once.ownership == first.ownership
        await kill(first)
        second = await next_ready(supervisor)
        await (await second.open_session()).forward(tokens=[5], output="token")
        twice = await supervisor.metrics()
        assert (twice.totals.rows, twice.totals.tokens_sampled) == (4, 2)
        assert (twice.generation, twice.restarts, twice.causes) == (2, 1, {"signal_other": 1})
    after = await supervisor.metrics()
    assert (after.state, after.totals.rows, after.health_is_fresh) == ("stopped", 4, False)
    assert after.causes == {"signal_other": 1, "clean": 1}


async def test_drain_lets_sessions_finish_and_opens_no_more() -> None:
    """What runs may end; nothing new begins; True when nothing was left."""
    supervisor = Supervisor(spec(), settings=RESTARTING)
    async with supervisor as worker:
        session = await worker.open_session()
        drained: list[bool] = []

        async def drain() -> None:
            drained.append(await supervisor.drain(30))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(drain)
            with anyio.fail_after(10):
                while supervisor.state is not WorkerState.DRAINING:
                    await anyio.lowlevel.checkpoint()
            with pytest.raises(WorkerStopped, match="drained"):
                await worker.open_session()
            assert (await session.forward(tokens=[2, 3], output="token")).length == 2
            assert drained == []
            await session.close()
        assert drained == [True]
    assert supervisor.state is WorkerState.STOPPED
    assert supervisor.exit is not None
    assert supervisor.exit.cause is ExitCause.CLEAN


async def test_drain_ends_at_its_deadline() -> None:
    """A session that nobody closes does not hold up a stop."""
    supervisor = Supervisor(spec(), settings=replace(RESTARTING, stop=IMPATIENT))
    async with supervisor as worker:
        await worker.open_session()
        assert not await supervisor.drain(0.05)
    assert supervisor.state is WorkerState.STOPPED


async def test_second_drain_waits_like_the_first() -> None:
    """Whoever else asks for it cuts nothing off, and both are told when the worker has finished."""
    supervisor = Supervisor(spec(fault_plan="slow:200"), settings=RESTARTING)
    async with supervisor as worker:
        session = await worker.open_session()
        drained: list[bool] = []

        async def drain() -> None:
            drained.append(await supervisor.drain(20))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(drain)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(drain)
            await anyio.wait_all_tasks_blocked()
            assert (await session.forward(tokens=[2], output="none")).length == 1
            assert drained == []
            with anyio.fail_after(10):
                await session.close()
        assert drained == [True, True]
        assert worker.exit is None
    assert supervisor.exit is not None
    assert supervisor.exit.cause is ExitCause.CLEAN


@pytest.mark.parametrize("how", ["drain", "kill"])
async def test_reset_after_a_stop_starts_nothing(how: str) -> None:
    """A worker that was given up and then stopped stays given up: nobody is there to start it, and whoever
    waits for it is told."""
    supervisor = Supervisor(spec(), settings=SETTINGS)
    async with supervisor as worker:
        await kill(worker)
        if how == "drain":
            assert await supervisor.drain(20)
        else:
            supervisor.kill()
        supervisor.reset()
        with anyio.fail_after(20), pytest.raises(GivenUp):
            await supervisor.wait_ready()
    assert (supervisor.state, supervisor.generation) == (WorkerState.FAILED, 1)


async def test_worker_that_dies_while_it_drains_is_not_started_again() -> None:
    """A drain ends when there is nothing left to finish."""
    supervisor = Supervisor(spec(), settings=RESTARTING)
    async with supervisor as worker:
        await worker.open_session()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(supervisor.drain, 30)
            with anyio.fail_after(20):
                while supervisor.state is not WorkerState.DRAINING:
                    await anyio.lowlevel.checkpoint()
                os.kill(worker.pid, signal.SIGKILL)
        with anyio.fail_after(20):
            await worker.wait_for_end()
    assert (supervisor.generation, supervisor.state) == (1, WorkerState.STOPPED)


async def test_death_in_one_of_several_supervisors_disturbs_no_other() -> None:
    """Supervisors in one loop restart their workers on their own."""
    lives: list[tuple[int, int]] = []

    async def run(deaths: int) -> None:
        supervisor = Supervisor(spec((0, deaths + 1)), settings=RESTARTING)
        async with supervisor as worker:
            for _ in range(deaths):
                await kill(worker)
                worker = await next_ready(supervisor)
            async with await worker.open_session() as session:
                await session.forward(tokens=[2], output="hidden")
            lives.append((worker.identity.end - 1, supervisor.restarts))

    async with anyio.create_task_group() as tasks:
        for deaths in range(4):
            tasks.start_soon(run, deaths)
    assert sorted(lives) == [(deaths, deaths) for deaths in range(4)]


async def test_two_waiters_get_the_same_worker() -> None:
    """Everybody who waits for the restart is woken by it."""
    supervisor = Supervisor(spec(), settings=RESTARTING)
    async with supervisor as first:
        found: list[Worker] = []

        async def wait() -> None:
            found.append(await supervisor.wait_ready())

        await kill(first)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(wait)
        assert found == [supervisor.worker] * 3


async def test_killed_supervisor_starts_no_other_worker() -> None:
    """`kill` is a stop without patience: the pending request is told so, and all is released."""
    supervisor = Supervisor(spec(fault_plan="hang-hard@1"), settings=RESTARTING)
    supervisor.kill()  # of which nothing comes before there is anything
    async with supervisor as worker:
        session = await worker.open_session()
        async with anyio.create_task_group() as tasks:

            async def forward() -> None:
                with pytest.raises(WorkerStopped):
                    await session.forward(tokens=[2], output="none")

            tasks.start_soon(forward)
            await anyio.lowlevel.checkpoint()
            supervisor.kill()
        with pytest.raises(WorkerStopped):
            await supervisor.wait_ready()
    assert supervisor.restarts == 0
    assert supervisor.exit is not None
    assert supervisor.exit.cause is ExitCause.SIGNAL_OURS
    assert supervisor.exit.signal == signal.SIGKILL
    assert supervisor.release is not None
    assert (supervisor.release.stop_rung, supervisor.release.complete) == (StopRung.KILL, True)


async def test_kill_in_the_middle_of_a_stop_is_told_as_the_rung_that_worked() -> None:
    """A worker that heeds no request is being stopped patiently when somebody loses patience."""
    patient = replace(SETTINGS, stop=StopDeadlines(request_s=3600))
    supervisor = Supervisor(spec(fault_plan="hold@bye"), settings=patient)
    events = supervisor.events()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks, supervisor:
            tasks.start_soon(_kill_when_held, supervisor, events)
    assert supervisor.release is not None
    assert (supervisor.release.stop_rung, supervisor.release.complete) == (StopRung.KILL, True)
    assert supervisor.exit is not None
    assert supervisor.exit.stop_rung is StopRung.KILL


async def _kill_when_held(supervisor: Supervisor, events: EventReader) -> None:
    await events.wait_for(StderrLine, lambda line: "in place of bye" in line.text)
    supervisor.kill()
