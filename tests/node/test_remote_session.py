"""Sessions from afar when things go wrong: who is told what, once, and what is left at the node."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from fakes import PROMPT, SETTINGS, spec
from gguf_worker import Supervisor
from gguf_worker.errors import (
    GgufWorkerError,
    LocalProtocolError,
    RequestError,
    RequestTimeout,
    StageLost,
)
from gguf_worker.node import stage_link, versions
from gguf_worker.node.gguf_backend import GgufBackend
from gguf_worker.node.remote_session import RemoteSession, RemoteTimeouts
from gguf_worker.node.remote_stage import RemoteStage
from gguf_worker.node.transport import Transport, TransportClosed
from gguf_worker.protocol.messages import Output, Sampling
from gguf_worker.testing.memory_transport import MemoryLink
from gguf_worker.work import Work
from gguf_worker_v1 import stage_pb2
from node.rigs import NODE, TOKENS, Rig, node, rig_of
from node.toy_backend import ToyBackend

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def toy() -> AsyncIterator[tuple[Rig, ToyBackend, RemoteStage]]:
    """A node with one adder."""
    backend = ToyBackend(0, 3)
    async with rig_of([backend]) as rig:
        yield rig, backend, rig.stage(0)


async def forward(session: RemoteSession, *numbers: int) -> int:
    return (await session.forward_piece(tokens=numbers, output=Output.NONE)).length


@asynccontextmanager
async def interrupted_forward(
    backend: ToyBackend, session: RemoteSession, *numbers: int
) -> AsyncIterator[None]:
    """A forward that computes while the body runs, and whose task is cancelled then."""
    backend.gate = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(forward, session, *numbers))
        await backend.waiting.wait()
        yield
        tasks.cancel_scope.cancel()


async def test_close_says_how_the_work_ended() -> None:
    async with toy() as (rig, _, stage):
        work = Work(account="alice")
        session = await stage.open_session(work=work)
        assert await forward(session, 1, 2, 3) == 3
        assert await session.close("length") == 3
        assert await session.close("stop") == 0
        assert await session.cancel("late") == 0
        await session.release()
        await rig.ended()
        entry = rig.ledger.entries[0]
        assert (entry.work.work_id, entry.work.request_id) == (work.work_id, work.request_id)
        assert (entry.work.account, entry.reason, entry.layers) == ("alice", "length", (0, 3))
        assert session.telemetry is not None
        assert (session.telemetry.rows, session.telemetry.forwards) == (3, 1)
        with pytest.raises(RequestError, match="open another one"):
            await forward(session, 1)


async def test_account_of_the_transport_wins() -> None:
    async with toy() as (rig, _, stage):
        rig.account = "bob"
        session = await stage.open_session(work=Work(account="alice"))
        await session.close()
        assert rig.ledger.entries[0].work.account == "bob"


async def test_settled_work_is_not_opened_again(kind: str) -> None:
    async with node(kind) as rig:
        work = Work()
        await (await rig.stage(0).open_session(work=work)).close("stop")
        with pytest.raises(RequestError) as refusal:
            await rig.stage(0).open_session(work=work.again())
        assert refusal.value.code == "work_settled"
        await rig.ended()


async def test_cancel_while_another_task_waits() -> None:
    """The forward fails with `cancelled`, and the cancel says what it freed."""
    async with toy() as (rig, backend, stage):
        session = await stage.open_session()
        await forward(session, 1, 2, 3)
        backend.gate = anyio.Event()
        errors: list[GgufWorkerError] = []

        async def wait() -> None:
            try:
                await forward(session, 4)
            except GgufWorkerError as error:
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await backend.waiting.wait()
            assert await session.cancel("user") == 3
        assert [error.code for error in errors] == ["cancelled"]
        assert rig.ledger.entries[0].reason == "cancelled"


async def test_forward_whose_task_is_cancelled_is_taken_back() -> None:
    """The stage stops at once; the session goes on with the rows that its user knows of."""
    async with toy() as (rig, backend, stage):
        session = await stage.open_session()
        await forward(session, 1, 2, 3)
        async with interrupted_forward(backend, session, 4, 5):
            pass
        backend.gate = None
        assert session.position == 3
        fork = await session.fork()
        assert (await forward(session, 7), await forward(fork, 8)) == (4, 4)
        await session.close("stop")
        await fork.close("stop")
        assert [entry.rows for entry in rig.ledger.entries] == [4, 1]


async def test_forward_that_was_computed_before_its_cancel_came_is_forgotten() -> None:
    """The answer is on its way when the task is cancelled: the row is not there afterwards."""
    async with toy() as (rig, backend, stage):
        session = await stage.open_session()
        await forward(session, 1, 2, 3)
        link = rig.links[0]
        link.down.hold()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(forward, session, 4))
            await link.down.wait_for_sent(4)
            tasks.cancel_scope.cancel()
        link.down.release()
        assert await forward(session, 9) == 4
        assert next(iter(backend.sessions)).rows == [1, 2, 3, 9]
        await session.close()


@pytest.mark.parametrize("resumes", [True, False])
async def test_forward_that_is_cancelled_while_it_is_sent(
    resumes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its frame is sent to the end and then taken back. Where that takes too long the stream is lost, because
    half a frame cannot be taken back."""
    async with toy() as (rig, backend, stage):
        session = await stage.open_session()
        await forward(session, 1, 2, 3)
        up = rig.links[0].up
        up.stall()
        if not resumes:
            monkeypatch.setattr(stage_link, "FINISH_S", 0.02)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(forward, session, 4))
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
            if resumes:
                await anyio.lowlevel.cancel_shielded_checkpoint()
                up.resume()
        if resumes:
            assert await forward(session, 9) == 4
            assert next(iter(backend.sessions)).rows == [1, 2, 3, 9]
            assert await session.cancel("user") == 4
        else:
            with pytest.raises(StageLost, match="interrupted"):
                await forward(session, 9)
            await session.release()
        await rig.ended()


HELLO = stage_pb2.StageFrame(hello=stage_pb2.Hello(version=versions.version()))
OPENED = stage_pb2.StageFrame(request=1, opened=stage_pb2.Opened(session="s"))


async def forward_once(stage: RemoteStage) -> None:
    session = await stage.open_session()
    try:
        await forward(session, 1, 2)
    finally:
        assert session.position == 0
        await session.release()


def result(**fields: Any) -> stage_pb2.StageFrame:
    return stage_pb2.StageFrame(request=2, result=stage_pb2.Result(**fields))


@pytest.mark.parametrize(
    "answers",
    [
        [OPENED],
        [HELLO, stage_pb2.StageFrame(request=1, closed=stage_pb2.Closed())],
        [HELLO, OPENED, stage_pb2.StageFrame(request=2, trimmed=stage_pb2.Trimmed())],
        [HELLO, OPENED, result(length=1)],
        [HELLO, OPENED, result(length=3)],
        [HELLO, OPENED, result(length=2, output=stage_pb2.OUTPUT_TOKEN)],
        [HELLO, OPENED, result(length=2, rows=7)],
    ],
    ids=["no hello", "not opened", "no result", "a row less", "a row more", "another output", "no rows"],
)
async def test_stage_that_makes_no_sense_is_lost(answers: list[stage_pb2.StageFrame]) -> None:
    """And nothing of what it said is believed."""
    link = MemoryLink()
    for frame in answers:
        await link.server.send(frame.SerializeToString())

    async def connect() -> Transport:
        return link.client

    stage = RemoteStage(ToyBackend(0, 3).describe(), NODE, connect)
    with anyio.fail_after(5), pytest.raises(StageLost) as lost:
        await forward_once(stage)
    assert lost.value.fields["code"] == "bad_frame"
    assert link.client.is_closed


async def test_answer_that_only_a_newer_version_knows_is_skipped() -> None:
    async with toy() as (rig, _, stage):
        unknown = b"\x08\x01\xba\x3e\x03new"  # field 999 of an answer to request 1
        rig.prepare = lambda link: setattr(
            link.down, "alter", lambda index, frame: (frame, unknown) if index == 0 else (frame,)
        )
        session = await stage.open_session()
        assert await forward(session, 1) == 1
        await session.close()


async def test_way_that_takes_nothing_is_no_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_link, "FINISH_S", 0.01)
    async with toy() as (rig, _, _):
        rig.prepare = lambda link: link.up.stall()
        with anyio.fail_after(2), pytest.raises(StageLost) as lost:
            await rig.stage(0, timeouts=RemoteTimeouts(connect_s=0.02)).open_session()
        assert lost.value.fields["code"] == "unreachable"
        assert rig.links[0].client.is_closed


async def test_stage_that_does_not_answer_is_not_waited_for() -> None:
    async with toy() as (rig, backend, _):
        stage = rig.stage(0, timeouts=RemoteTimeouts(request_s=0.05))
        session = await stage.open_session()
        backend.gate = anyio.Event()
        with pytest.raises(RequestTimeout, match=r"within 0\.05 s"):
            await forward(session, 1)
        backend.gate = None
        assert await forward(session, 2) == 1
        await session.close()


# ---- the stage is gone --------------------------------------------------------------------------


async def test_worker_that_is_killed_is_lost_once_and_found_again() -> None:
    """SIGKILL while it computes; the node takes sessions again when another process took its place."""
    supervisor = Supervisor(spec(fault_plan="hang@2"), settings=replace(SETTINGS, restart=PROMPT))
    async with supervisor as worker, rig_of([GgufBackend(supervisor)]) as rig:
        stage = rig.stage(0)
        session = await stage.open_session()
        await forward(session, 1, 2, 3)
        async with anyio.create_task_group() as tasks:
            losses: list[StageLost] = []
            tasks.start_soon(_expect_loss, session, losses)
            while (await worker.health()).state != "computing":
                pass
            os.kill(worker.pid, signal.SIGKILL)
        fields = losses[0].fields
        assert (fields["node"], fields["code"], fields["signal"]) == (NODE, "worker_died", "SIGKILL")
        with pytest.raises(StageLost):
            await forward(session, 4)
        with pytest.raises(StageLost):
            await session.close("stop")
        await supervisor.wait_ready()
        again = await stage.open_session(work=session.work.again())
        assert await forward(again, 1, 2, 3) == 3
        await again.close("stop")
        await rig.ended()
        assert [entry.reason for entry in rig.ledger.entries] == ["", "stop"]


async def _expect_loss(session: RemoteSession, losses: list[StageLost]) -> None:
    with pytest.raises(StageLost) as loss:
        await forward(session, 4)
    losses.append(loss.value)


@pytest.mark.parametrize("code", ["lost", "closed", "unreachable"])
async def test_transport_that_breaks_is_the_stage_lost(code: str) -> None:
    async with toy() as (rig, backend, stage):
        session = await stage.open_session()
        await forward(session, 1)
        backend.gate = anyio.Event()
        async with anyio.create_task_group() as tasks:
            losses: list[StageLost] = []
            tasks.start_soon(_expect_loss, session, losses)
            await backend.waiting.wait()
            rig.links[0].cut(code)
        assert losses[0].fields == {"node": NODE, "code": code}
        with pytest.raises(StageLost):
            await session.trim(0)
        await session.release()
        await rig.ended()


@pytest.mark.parametrize(("code", "kept"), [("unauthenticated", True), ("version", True), ("lost", False)])
async def test_stage_that_cannot_be_dialled(code: str, kept: bool) -> None:
    """Where the next attempt would fail as well, the transport's own error is told."""
    stage = ToyBackend(0, 3).describe()

    async def connect() -> Transport:
        raise TransportClosed("no way", code=code)

    with pytest.raises(TransportClosed if kept else StageLost):
        await RemoteStage(stage, NODE, connect).open_session()


async def test_stage_that_is_dialled_for_ever() -> None:
    stage = ToyBackend(0, 3).describe()

    async def connect() -> Transport:
        await anyio.sleep_forever()
        raise AssertionError

    remote = RemoteStage(stage, NODE, connect, timeouts=RemoteTimeouts(connect_s=0.01))
    with pytest.raises(StageLost, match=r"within 0\.01 s"):
        await remote.open_session()


@pytest.mark.parametrize("state", ["starting", "draining"])
async def test_stage_that_takes_no_session_now_is_lost(state: str) -> None:
    """Another one, or the same one later, may take the work."""
    async with toy() as (rig, backend, stage):
        backend.change(state)
        with pytest.raises(StageLost):
            await stage.open_session()
        await rig.ended()


async def test_open_that_is_cancelled_leaves_nothing() -> None:
    """At every frame that it waits for."""
    async with toy() as (rig, backend, stage):
        rig.prepare = lambda link: link.down.hold()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stage.open_session)
            while not rig.links:
                await anyio.lowlevel.checkpoint()
            await rig.links[0].down.wait_for_sent(2)
            assert backend.sessions
            tasks.cancel_scope.cancel()
        await rig.ended()
        assert rig.ledger.entries[0].reason == ""


async def test_deadline_of_the_work_goes_along() -> None:
    async with toy() as (rig, backend, stage):
        with pytest.raises(RequestTimeout, match="deadline"):
            await stage.open_session(work=Work(deadline=0.0))
        session = await stage.open_session(work=Work(deadline=anyio.current_time() + 0.05))
        backend.gate = anyio.Event()
        with pytest.raises(RequestTimeout) as late:
            await forward(session, 1)
        assert late.value.code == "deadline"
        await session.release()
        await rig.ended()
        assert rig.ledger.entries[0].reason == "deadline"


# ---- forks and receipts -------------------------------------------------------------------------


async def test_fork_belongs_to_its_account() -> None:
    async with toy() as (rig, _, stage):
        rig.account = "alice"
        session = await stage.open_session()
        await forward(session, 1, 2)
        fork = await session.fork(1)
        assert fork.position == 1
        rig.account = "mallory"
        with pytest.raises(RequestError) as refusal:
            await session.fork(1)
        assert refusal.value.code == "no_session"
        await session.close()
        rig.account = "alice"
        with pytest.raises(RequestError):
            await session.fork(0)
        await fork.close()


async def test_fork_draws_by_its_own_sampling(kind: str) -> None:
    async with node(kind) as rig:
        session = await rig.stage(0).open_session(sampling=Sampling(seed=1))
        fork = await session.fork(sampling=Sampling(seed=2))
        assert (session.sampling.seed, fork.sampling.seed) == (1, 2)
        await session.close()
        await fork.close()


async def test_rows_that_cannot_be_counted_are_not_given_out(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The client hears nothing of the node's files; the node's log does."""
    async with node(kind) as rig:
        session = await rig.stage(0).open_session()
        await forward(session, *TOKENS[:4])
        path = "/home/somebody/receipts.sqlite"
        rig.ledger.failure = GgufWorkerError(f"ledger {path}: the disk is full", fields={"path": path})
        with pytest.raises(RequestError, match="try again, or ask another node") as refusal:
            await forward(session, 5)
        assert (refusal.value.code, refusal.value.retryable) == ("ledger", True)
        assert path not in f"{refusal.value.message} {refusal.value.fields}"
        (line,) = [one for one in caplog.records if getattr(one, "event", "") == "ledger_error"]
        assert path in line.getMessage()
        rig.ledger.failure = None
        assert await forward(session, 5) == 5
        await session.close("stop")
        await rig.ended()
        assert rig.ledger.entries[0].rows == 5


@pytest.mark.parametrize("position", [-1, 3])
async def test_positions_outside_are_refused_here(position: int) -> None:
    async with toy() as (_, _, stage):
        session = await stage.open_session()
        await forward(session, 1, 2)
        for call in (session.trim, session.fork):
            with pytest.raises(LocalProtocolError, match="has 2 rows"):
                await call(position)
        with pytest.raises(LocalProtocolError):
            await session.forward_piece(tokens=[2**40], output=Output.NONE)
        await session.close()
