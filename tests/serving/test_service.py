"""The life of a service: start, restarts, drain, and a stop at once."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest

from fakes import IMPATIENT, PROMPT, SETTINGS, spec
from gguf_worker import RestartPolicy, Session, ShardSpec, StderrLine, Worker, WorkerSettings
from gguf_worker.errors import GivenUp, LoadRejected, RequestError, WorkerStopped
from gguf_worker.serving.service import Phase, Service
from gguf_worker.serving.signals import StopRequest

pytestmark = pytest.mark.anyio

RESTARTING = replace(SETTINGS, restart=PROMPT)


async def until(service: Service, *phases: Phase) -> None:
    """Returns when the service is in one of these phases."""
    with anyio.fail_after(20):
        while True:
            changed = service.next_change()
            if service.phase in phases:
                return
            await changed.wait()


class Running:
    """A service that runs, and how to stop it."""

    def __init__(self) -> None:
        self.service = Service("fake")
        self.stop = StopRequest()
        self.ended = anyio.Event()

    async def run(self, specs: list[ShardSpec], settings: WorkerSettings, drain_timeout_s: float) -> None:
        await self.service.run(specs, settings=settings, stop=self.stop, drain_timeout_s=drain_timeout_s)
        self.ended.set()

    def worker(self, index: int = 0) -> Worker:
        worker = self.service.shards[index].supervisor.worker
        assert worker is not None
        return worker

    async def has_ended(self) -> None:
        with anyio.fail_after(20):
            await self.ended.wait()


@asynccontextmanager
async def running(
    *specs: ShardSpec, settings: WorkerSettings = RESTARTING, drain_timeout_s: float = 20.0
) -> AsyncIterator[Running]:
    """Runs a service until the body stops it."""
    running = Running()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(running.run, list(specs), settings, drain_timeout_s)
        yield running
        await running.has_ended()


async def test_request_that_is_under_way_finishes_before_the_stop() -> None:
    """A drain opens no session, and lets those that are there come to their end."""
    async with running(spec(fault_plan="slow:300")) as it:
        await until(it.service, Phase.READY)
        worker, finished = it.worker(), anyio.Event()

        async def use(session: Session) -> None:
            async with session:
                await session.forward(tokens=[2, 3], output="token")
                await session.forward(tokens=[4], output="token")
            finished.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(use, await worker.open_session())
            it.stop.take(signal.SIGTERM)
            with anyio.fail_after(20):
                while it.service.shards[0].state != "draining":
                    await it.service.next_change().wait()
            assert it.service.phase is Phase.DRAINING
            with pytest.raises(WorkerStopped):
                await worker.open_session()
        assert finished.is_set()
        await it.has_ended()
    assert it.service.phase is Phase.STOPPED
    (look,) = await it.service.look()
    assert look.metrics.causes == {"clean": 1}


async def test_request_that_is_too_slow_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    """Past its deadline a drain waits no longer, and says what was lost."""
    settings = replace(RESTARTING, stop=IMPATIENT)
    async with running(spec(fault_plan="hang@1"), settings=settings, drain_timeout_s=0.1) as it:
        await until(it.service, Phase.READY)
        session = await it.worker().open_session()
        async with anyio.create_task_group() as tasks:

            async def forward() -> None:
                with pytest.raises(RequestError, match="cancelled"):
                    await session.forward(tokens=[2], output="token")

            tasks.start_soon(forward)
            await anyio.lowlevel.checkpoint()
            it.stop.take(signal.SIGTERM)
    cut_off = [record for record in caplog.records if getattr(record, "event", "") == "drain_timeout"]
    assert [record.getMessage() for record in cut_off] == ["not finished in time, and cut off: layers 0:0"]


async def test_second_signal_does_not_wait_for_the_drain() -> None:
    """A worker that ignores everything is killed in the middle of the drain."""
    async with running(spec(fault_plan="hang-hard@1"), drain_timeout_s=1000.0) as it:
        await until(it.service, Phase.READY)
        session = await it.worker().open_session()
        async with anyio.create_task_group() as tasks:

            async def forward() -> None:
                with pytest.raises(WorkerStopped):
                    await session.forward(tokens=[2], output="token")

            tasks.start_soon(forward)
            await anyio.lowlevel.checkpoint()
            it.stop.take(signal.SIGINT)
            await until(it.service, Phase.DRAINING)
            it.stop.take(signal.SIGINT)
    exit_report = it.service.shards[0].supervisor.exit
    assert exit_report is not None
    assert (exit_report.cause.value, exit_report.signal) == ("signal_ours", signal.SIGKILL)


@pytest.mark.parametrize("fault_plan", ["hold@hello", "load-hang"])
async def test_stop_while_a_worker_starts_is_a_clean_end(fault_plan: str) -> None:
    """Nobody waits for a start that is not wanted any more."""
    settings = replace(RESTARTING, stop=IMPATIENT)
    async with running(spec((0, 6)), spec((6, 12), fault_plan=fault_plan), settings=settings) as it:
        with anyio.fail_after(20):
            while len(it.service.waiting_for) != 1:
                await it.service.next_change().wait()
        assert it.service.phase is Phase.STARTING
        assert [shard.layers for shard in it.service.waiting_for] == ["6:12"]
        it.stop.take(signal.SIGTERM)


async def test_worker_that_still_starts_does_not_end_the_drain_of_another() -> None:
    """The stop of the one is at once, and no failure; the request of the other one finishes."""
    settings = replace(RESTARTING, stop=IMPATIENT)
    specs = (spec((0, 6), fault_plan="slow:300"), spec((6, 12), fault_plan="hold@hello"))
    async with running(*specs, settings=settings) as it:
        with anyio.fail_after(20):
            while len(it.service.waiting_for) != 1:
                await it.service.next_change().wait()
        async with await it.worker().open_session() as session:
            it.stop.take(signal.SIGTERM)
            await session.forward(tokens=[2], output="none")
    assert [shard.state for shard in it.service.shards] == ["stopped", "stopped"]


async def test_service_is_degraded_until_its_worker_is_there_again() -> None:
    """And counts the restart; the other worker is not disturbed."""
    settings = replace(SETTINGS, restart=RestartPolicy(backoff_initial_s=0.5))
    async with running(spec((0, 6)), spec((6, 12)), settings=settings) as it:
        await until(it.service, Phase.READY)
        first, second = it.worker(0).pid, it.worker(1).pid
        os.kill(second, signal.SIGKILL)
        await until(it.service, Phase.DEGRADED)
        assert it.service.is_live
        assert it.service.summary().startswith("degraded: 1 of 2 workers ready; layers 6:12: ")
        await until(it.service, Phase.READY)
        looks = await it.service.look()
        assert [look.metrics.restarts for look in looks] == [0, 1]
        assert looks[0].metrics.pid == first
        assert [end.stamp.pid for end in looks[1].ends] == [second]
        it.stop.take(signal.SIGTERM)


async def test_worker_that_is_given_up_stops_the_others_and_is_told() -> None:
    """The error of the one that failed, and no worker left of any."""
    service = Service("fake")
    specs = [spec((0, 6)), spec((6, 12), fault_plan="load-crash")]
    with pytest.raises(GivenUp) as caught, anyio.fail_after(20):
        await service.run(specs, settings=RESTARTING, stop=StopRequest(), drain_timeout_s=1.0)
    assert len(caught.value.causes) == PROMPT.max_restarts + 1
    assert service.phase is Phase.STOPPED
    assert [shard.supervisor.state for shard in service.shards] == ["stopped", "failed"]


async def test_load_that_is_refused_is_not_tried_again() -> None:
    """It would be refused again."""
    service = Service("fake")
    with pytest.raises(LoadRejected), anyio.fail_after(20):
        await service.run([spec((3, 99))], settings=RESTARTING, stop=StopRequest(), drain_timeout_s=1.0)
    assert service.shards[0].supervisor.restarts == 0


async def test_lines_of_stderr_are_logged_with_their_process(caplog: pytest.LogCaptureFixture) -> None:
    """As events of the log, in the worker's own words."""
    caplog.set_level(logging.INFO)
    async with running(spec(fault_plan="crash@1"), settings=replace(RESTARTING, stop=IMPATIENT)) as it:
        await until(it.service, Phase.READY)
        pid = it.worker().pid
        events = it.service.shards[0].supervisor.events()
        async with await it.worker().open_session() as session:
            with pytest.raises(Exception, match="SIGABRT"):
                await session.forward(tokens=[2], output="token")
        await until(it.service, Phase.READY)
        said = [event.text for event in iter(events.next_nowait, None) if isinstance(event, StderrLine)]
        it.stop.take(signal.SIGTERM)
    fields = [vars(r)["fields"] for r in caplog.records if vars(r).get("event") == "worker_stderr"]
    assert [(field["worker_pid"], field["line"]) for field in fields if field["generation"] == 1] == [
        (pid, line) for line in said
    ]
