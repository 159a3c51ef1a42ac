"""A cancel is heard in every state, answers all that was asked before, and says what it freed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from fakes import SETTINGS, spec
from gguf_worker import Supervisor
from gguf_worker.node.gguf_backend import GgufBackend
from gguf_worker.node.stage_stream import StreamSettings
from gguf_worker_v1 import stage_pb2
from manual_clock import ManualClock
from node.raw import RawClient, tokens
from node.rigs import Rig, node, rig_of
from node.toy_backend import ToyBackend

pytestmark = pytest.mark.anyio

Seen = tuple[int, str]
"""The number that a frame answers, and its body or its error's code."""


def seen(frame: stage_pb2.StageFrame) -> Seen:
    body = frame.WhichOneof("body")
    assert body is not None
    return frame.request, frame.error.code if body == "error" else body


async def frames_of(client: RawClient, count: int) -> list[Seen]:
    return [seen(await client.receive()) for _ in range(count)]


@asynccontextmanager
async def held_session() -> AsyncIterator[tuple[Rig, ToyBackend, RawClient]]:
    """A session of three rows whose next forward waits at a gate."""
    backend = ToyBackend(0, 3)
    async with rig_of([backend]) as rig:
        client = RawClient(await rig.dial())
        await client.open(backend.describe().identity)
        await client.ask(forward=tokens(0, 1, 2, 3))
        backend.gate = anyio.Event()
        yield rig, backend, client


async def test_cancel_of_a_session_that_is_idle() -> None:
    async with held_session() as (rig, backend, client):
        await client.send(cancel=stage_pb2.Cancel(reason="enough"))
        assert seen(await client.receive()) == (3, "telemetry")
        assert (await client.receive()).cancelled.kv_cells_freed == 3
        assert backend.sessions == set()
        assert rig.ledger.entries[0].reason == "cancelled"


async def test_cancel_resolves_what_computes_and_what_waits_in_order() -> None:
    async with held_session() as (rig, backend, client):
        await client.send(forward=tokens(3, 4))
        await backend.waiting.wait()
        await client.send(forward=tokens(4, 5))
        await client.send(close=stage_pb2.Close(finish_reason="stop"))
        await client.send(cancel=stage_pb2.Cancel())
        assert await frames_of(client, 4) == [
            (3, "cancelled"),
            (4, "cancelled"),
            (5, "cancelled"),
            (6, "telemetry"),
        ]
        assert (await client.receive()).cancelled.kv_cells_freed == 3
        assert (rig.ledger.entries[0].reason, rig.ledger.entries[0].rows) == ("cancelled", 3)


async def test_cancel_that_keeps_the_session_undoes_what_it_met() -> None:
    async with held_session() as (rig, backend, client):
        await client.send(forward=tokens(3, 4))
        await backend.waiting.wait()
        await client.send(forward=tokens(4, 5))
        await client.send(cancel=stage_pb2.Cancel(keep_session=True))
        assert await frames_of(client, 3) == [(3, "cancelled"), (4, "cancelled"), (5, "cancelled")]
        backend.gate = None
        assert (await client.ask(forward=tokens(3, 9))).result.length == 4
        await client.send(close=stage_pb2.Close(finish_reason="stop"))
        assert await frames_of(client, 2) == [(7, "telemetry"), (7, "closed")]
        assert (rig.ledger.entries[0].reason, rig.ledger.entries[0].rows) == ("stop", 4)


async def test_second_cancel_is_told_the_same() -> None:
    async with held_session() as (_, _, client):
        for _ in range(2):
            await client.send(cancel=stage_pb2.Cancel())
            await client.receive()
            assert (await client.receive()).cancelled.kv_cells_freed == 3
        assert (await client.ask(trim=stage_pb2.Trim())).error.code == "session_closed"


async def test_cancel_without_a_session_is_answered() -> None:
    async with rig_of([ToyBackend(0, 3)]) as rig:
        client = RawClient(await rig.dial())
        await client.greet()
        await client.send(cancel=stage_pb2.Cancel())
        assert await frames_of(client, 2) == [(1, "telemetry"), (1, "cancelled")]


async def test_cancel_by_a_client_that_does_not_read_frees_the_session() -> None:
    """Its answers are held up; the session is gone all the same, and what was asked is answered later."""
    backend = ToyBackend(0, 3)
    async with rig_of([backend]) as rig:
        link = await rig.dial()
        client = RawClient(link)
        await client.open(backend.describe().identity)
        link.down.hold()
        for position in range(12):
            await client.send(forward=tokens(position, 1))
        await link.down.wait_for_sent(2 + 8)
        await client.send(cancel=stage_pb2.Cancel())
        await backend.emptied.wait()
        assert rig.ledger.entries[0].reason == "cancelled"
        link.down.release()
        answers = await frames_of(client, 14)
        assert [number for number, _ in answers] == [*range(2, 14), 14, 14]
        assert answers[-2:] == [(14, "telemetry"), (14, "cancelled")]


@pytest.mark.parametrize("keep_session", [False, True])
async def test_worker_stops_computing(keep_session: bool) -> None:
    """A step that hangs until it is cancelled: with a real worker, and its session is as it was."""
    supervisor = Supervisor(spec(fault_plan="hang@2"), settings=SETTINGS)
    async with supervisor as worker, rig_of([GgufBackend(supervisor)]) as rig:
        client = RawClient(await rig.dial())
        await client.open(rig.backends[0].describe().identity)
        await client.ask(forward=tokens(0, 1, 2, 3))
        await client.send(forward=tokens(3, 4, 5))
        while (await worker.health()).state != "computing":
            pass
        await client.send(cancel=stage_pb2.Cancel(keep_session=keep_session))
        assert seen(await client.receive()) == (3, "cancelled")
        if keep_session:
            assert (await client.receive()).cancelled.kv_cells_freed == 0
            assert (await client.ask(forward=tokens(3, 4, 5))).result.length == 5
        else:
            await client.receive()
            assert (await client.receive()).cancelled.kv_cells_freed == 3
            assert (await worker.health()).kv_cells_used == 0


# ---- the other ways to end ----------------------------------------------------------------------


async def test_client_that_vanishes_while_it_computes_frees_its_cells() -> None:
    async with held_session() as (rig, backend, client):
        await client.send(forward=tokens(3, 4))
        await backend.waiting.wait()
        client.link.cut()
        await rig.ended()
        assert (rig.ledger.entries[0].reason, rig.ledger.entries[0].rows) == ("", 3)


async def test_deadline_ends_stream_and_session() -> None:
    clock, backend = ManualClock(), ToyBackend(0, 3)
    async with rig_of([backend], clock=clock) as rig:
        client = RawClient(await rig.dial())
        await client.open(backend.describe().identity, deadline_ms=1500)
        backend.gate = anyio.Event()
        await client.send(forward=tokens(0, 1))
        await backend.waiting.wait()
        clock.advance(1.4)
        assert backend.sessions
        clock.advance(0.2)
        assert (await client.refusal()).code == "deadline"
        await rig.ended()
        assert rig.ledger.entries[0].reason == "deadline"
        assert rig.ledger.entries[0].work.deadline == 1001.5


async def test_deadline_of_a_session_that_is_closed_changes_nothing() -> None:
    clock, backend = ManualClock(), ToyBackend(0, 3)
    async with rig_of([backend], clock=clock) as rig:
        client = RawClient(await rig.dial())
        await client.open(backend.describe().identity, deadline_ms=1500)
        await client.send(close=stage_pb2.Close(finish_reason="stop"))
        await frames_of(client, 2)
        clock.advance(2)
        assert (await client.ask(tokenize=stage_pb2.Tokenize(text=b"a"))).HasField("tokenized")


async def test_deadline_of_an_open_that_is_refused_is_nobodys() -> None:
    """A client cannot make tasks wait by asking again and again, nor end its session by it."""
    clock, backend = ManualClock(), ToyBackend(0, 3)
    async with rig_of([backend], clock=clock) as rig:
        client = RawClient(await rig.dial())
        identity = backend.describe().identity
        await client.open(identity)
        again = stage_pb2.Open(identity=identity, deadline_ms=1)
        assert (await client.ask(open=again)).error.code == "session_open"
        clock.advance(1)
        await anyio.wait_all_tasks_blocked()
        assert (await client.ask(forward=tokens(0, 1))).result.length == 1


async def test_deadline_of_an_open_that_was_cancelled_is_not_the_next_ones() -> None:
    clock, backend, opens = ManualClock(), ToyBackend(0, 3), anyio.Event()
    async with rig_of([backend], clock=clock) as rig:
        client = RawClient(await rig.dial())
        identity = backend.describe().identity
        await client.greet()
        opening = backend.open

        async def wait(*_: Any) -> Any:
            opens.set()
            await anyio.sleep_forever()

        backend.open = wait  # type: ignore[method-assign, assignment]
        await client.send(open=stage_pb2.Open(identity=identity, deadline_ms=1))
        await opens.wait()
        await client.send(cancel=stage_pb2.Cancel())
        assert (await frames_of(client, 3))[0] == (1, "cancelled")
        backend.open = opening  # type: ignore[method-assign]
        assert (await client.ask(open=stage_pb2.Open(identity=identity))).HasField("opened")
        clock.advance(1)
        await anyio.wait_all_tasks_blocked()
        assert (await client.ask(forward=tokens(0, 1))).result.length == 1


async def test_deadline_at_the_end_of_time(kind: str) -> None:
    async with node(kind) as rig:
        client = RawClient(await rig.dial())
        await client.open(rig.backends[0].describe().identity, deadline_ms=2**64 - 1)
        assert (await client.ask(forward=tokens(0, 1))).result.length == 1


async def test_node_that_stops_says_so() -> None:
    backend = ToyBackend(0, 3)
    async with rig_of([backend], settings=StreamSettings(farewell_s=0.1)) as rig:
        client = RawClient(await rig.dial())
        await client.open(backend.describe().identity)
        await client.send(forward=tokens(0, 1, 2))
        await client.receive()
        rig.tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            assert (await client.refusal()).code == "stopped"
