"""Receipts in a JetStream stream: each of them once, whatever is killed on either side."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import pytest

from gguf_worker._tasks import plain_task_group
from gguf_worker.node.nats import Nats, NatsError, NatsOptions, connect_nats
from gguf_worker.node.receipts import publisher
from gguf_worker.node.receipts.errors import LedgerError
from gguf_worker.node.receipts.ledger import SqliteLedger
from gguf_worker.node.receipts.publisher import publishing
from gguf_worker.node.receipts.query import ReceiptQuery, open_ledger
from gguf_worker.node.receipts.stream import STREAM, make_stream, publish, published_receipts, subject_of
from gguf_worker.testing import receipts as lives
from gguf_worker.testing.nats import NatsServer
from gguf_worker.work import Work
from gguf_worker_v1 import receipt_pb2
from ledgers import ARTIFACT, LAYERS, MakeLedger, receipt, use

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def connected(server: NatsServer) -> AsyncIterator[Nats]:
    async with connect_nats(NatsOptions(servers=(server.url,))) as nats:
        yield nats


async def settle(ledger: SqliteLedger, *names: str) -> None:
    """Works of one row each."""
    for name in names:
        entry = await ledger.open(Work(work_id=name), artifact=ARTIFACT, layers=LAYERS)
        await entry.count(use(0, 1))
        await entry.close("stop")
    await ledger.flush()


async def published(nats: Nats) -> list[str]:
    """The works in the stream."""
    return [each.work_id async for each in published_receipts(nats)]


@contextmanager
def logged(event: str) -> Iterator[anyio.Event]:
    """Set when the publisher logs the event."""
    seen = anyio.Event()

    def look(record: logging.LogRecord) -> bool:
        if getattr(record, "event", "") == event:
            seen.set()
        return True

    publisher.log.addFilter(look)
    try:
        yield seen
    finally:
        publisher.log.removeFilter(look)


async def test_settled_receipts_are_published_as_they_are(make_ledger: MakeLedger) -> None:
    async with NatsServer(jetstream=True) as server, connected(server) as nats, make_ledger() as ledger:
        await settle(ledger, "before")
        async with publishing(ledger, nats):
            await settle(ledger, *(f"work-{number}" for number in range(200)))
            await ledger.wait_published()
        found = [each async for each in published_receipts(nats, node="node-a")]
        assert await published(nats) == [each.work_id for each in found]
        assert [each async for each in published_receipts(nats, node="node-b")] == []
    with open_ledger(ledger.path) as book:
        assert sorted(found, key=lambda each: each.work_id) == sorted(
            book.select(ReceiptQuery()), key=lambda each: each.work_id
        )
    assert len(found) == 201


async def test_second_publication_adds_nothing(make_ledger: MakeLedger) -> None:
    """A death between the acknowledgement and its mark; and long after the server forgot the message id."""
    async with NatsServer(jetstream=True) as server, connected(server) as nats, make_ledger() as ledger:
        await make_stream(nats)
        await settle(ledger, "work")
        ((number, settled),) = await ledger.unpublished(10)
        assert await publish(nats, settled) is None
        assert await publish(nats, settled) is None
        answer = await nats.jetstream.publish(
            subject_of("old", "node-a"), receipt("old").SerializeToString(), stream=STREAM
        )
        assert not answer.duplicate
        assert await publish(nats, receipt("old")) is None
        assert await published(nats) == ["work", "old"]
        await ledger.mark_published([number])
        assert await ledger.unpublished(10) == []


async def test_first_receipt_of_a_work_stands(
    make_ledger: MakeLedger, caplog: pytest.LogCaptureFixture
) -> None:
    """Two nodes of one name: the second receipt is not added, and that is said."""
    async with NatsServer(jetstream=True) as server, connected(server) as nats, make_ledger() as ledger:
        await make_stream(nats)
        await publish(nats, receipt("work", rows=77))
        await settle(ledger, "work")
        async with publishing(ledger, nats):
            await ledger.wait_published()
        assert [each.rows async for each in published_receipts(nats)] == [77]
    assert [record.levelname for record in caplog.records if "77 rows and not 1" in record.message] == [
        "ERROR"
    ]


async def test_killed_server_holds_receipts_up_and_doubles_none(make_ledger: MakeLedger) -> None:
    async with NatsServer(jetstream=True) as server, connected(server) as nats, make_ledger() as ledger:
        async with publishing(ledger, nats):
            await settle(ledger, "before")
            await ledger.wait_published()
            await server.kill()
            await settle(ledger, "while it is gone", "and one more")
            await server.start()
            await settle(ledger, "after")
            await ledger.wait_published()
        assert sorted(await published(nats)) == ["after", "and one more", "before", "while it is gone"]


async def test_end_settles_and_publishes_what_is_left(make_ledger: MakeLedger) -> None:
    async with NatsServer(jetstream=True) as server, connected(server) as nats, make_ledger() as ledger:
        async with publishing(ledger, nats):
            entry = await ledger.open(Work(work_id="work"), artifact=ARTIFACT, layers=LAYERS)
            await entry.count(use(0, 1))
        assert [each.finish_reason async for each in published_receipts(nats)] == ["interrupted"]


async def test_node_that_fails_publishes_its_last_receipts(make_ledger: MakeLedger) -> None:
    async with NatsServer(jetstream=True) as server, connected(server) as nats, make_ledger() as ledger:

        async def fail() -> None:
            async with publishing(ledger, nats):
                entry = await ledger.open(Work(work_id="work"), artifact=ARTIFACT, layers=LAYERS)
                await entry.count(use(0, 1))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert await published(nats) == ["work"]


async def test_server_without_streams_is_waited_for(make_ledger: MakeLedger) -> None:
    """The node goes on, and says what is wrong."""
    async with NatsServer(jetstream=False) as server, connected(server) as nats, make_ledger() as ledger:
        await settle(ledger, "work")
        with logged("receipts_held") as held, anyio.CancelScope() as scope:
            async with publishing(ledger, nats):
                await held.wait()
                scope.cancel()
        assert len(await ledger.unpublished(10)) == 1
        with pytest.raises(NatsError):
            await make_stream(nats)


async def test_what_is_no_receipt_of_its_subject_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Garbage, another node's work, and figures that no node has: the others are read all the same."""
    spoilt = [
        (subject_of("garbage", "node-b"), b"\xff\xff"),
        (subject_of("work", "node-b"), receipt("work", node="node-a", rows=99).SerializeToString()),
        (subject_of("huge", "node-b"), receipt("huge", node="node-b", rows=1 << 63).SerializeToString()),
        (
            subject_of("late", "node-b"),
            receipt("late", node="node-b", settled_at_ms=1 << 52).SerializeToString(),
        ),
    ]
    async with NatsServer(jetstream=True) as server, connected(server) as nats:
        await make_stream(nats)
        for subject, data in spoilt:
            await nats.jetstream.publish(subject, data, stream=STREAM)
        assert await publish(nats, receipt("work", node="node-a")) is None
        assert [(each.node, each.rows) async for each in published_receipts(nats)] == [("node-a", 3)]
        assert await publish(nats, receipt("garbage", node="node-b")) == receipt_pb2.Receipt()
    refused = [one for one in caplog.records if getattr(one, "event", "") == "receipt_refused"]
    assert len(refused) == len(spoilt)


async def test_ledger_that_fails_at_the_end_is_no_failure(
    make_ledger: MakeLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left is published after the next start."""

    async def fails() -> None:
        raise LedgerError("the disk failed")

    async with NatsServer(jetstream=True) as server, connected(server) as nats, make_ledger() as ledger:
        monkeypatch.setattr(ledger, "wait_published", fails)
        async with publishing(ledger, nats):
            await settle(ledger, "work")


async def test_mesh_without_a_stream_has_no_receipts() -> None:
    async with NatsServer(jetstream=True) as server, connected(server) as nats:
        assert await published(nats) == []


@pytest.mark.parametrize("name", ["a.b", "a b", "*", "ü", "x" * 64, ">"])
def test_any_id_has_a_subject_of_its_own(name: str) -> None:
    token = subject_of(name, "node").rpartition(".")[2]
    assert token.isalnum()
    assert token.isascii()
    assert len(token) == 64
    assert subject_of(name, "node") != subject_of(token, "node")
    assert subject_of("plain_1-a", "node") == "gguf-worker.receipts.node.plain_1-a"


@pytest.mark.skipif(sys.platform != "linux", reason="SIGKILL is timed for Linux")
async def test_stream_equals_the_works_whatever_was_killed(
    tmp_path: Path, note: Callable[[str], None]
) -> None:
    """Node processes killed at random moments, while they publish too; and the server as well."""
    path, truth = tmp_path / "receipts.sqlite", tmp_path / "truth"
    async with NatsServer(jetstream=True) as server:
        command = [sys.executable, "-m", lives.__name__, str(path), str(truth), "80", "3", server.url]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        async with plain_task_group() as tasks:
            tasks.start_soon(kill_again_and_again, server)
            ran = await anyio.run_process(command, env=environment, stderr=None)
            tasks.cancel_scope.cancel()
        await server.start()
        async with connected(server) as nats, SqliteLedger(path, node=lives.NODE) as ledger:
            async with publishing(ledger, nats):
                await ledger.wait_published()
            found = [each async for each in published_receipts(nats)]
    assert lives.differences(lives.read_truth(truth), found) == []
    with open_ledger(path) as book:
        assert {each.work_id for each in found} == {each.work_id for each in book.select(ReceiptQuery())}
    note(
        f"receipts in NATS: 80 works in {int(ran.stdout)} killed processes, {len(found)} receipts as counted"
    )


async def kill_again_and_again(server: NatsServer) -> None:
    while True:
        await anyio.sleep(0.3)
        await server.restart()
