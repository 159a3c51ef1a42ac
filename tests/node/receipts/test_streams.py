"""Streams of stages with a real ledger and a real trace below them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import gguf_worker.telemetry.spans
from gguf_worker._tasks import plain_task_group
from gguf_worker.errors import GgufWorkerError
from gguf_worker.node.receipts.ledger import SqliteLedger
from gguf_worker.node.remote_stage import RemoteStage
from gguf_worker.node.stage_service import StageService
from gguf_worker.protocol.messages import Output
from gguf_worker.telemetry import begin_generation
from gguf_worker.testing.memory_transport import MemoryLink, MemoryTransport
from gguf_worker.work import Work
from ledgers import MakeLedger, Stored
from node.toy_backend import ToyBackend

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def stage_over(ledger: SqliteLedger) -> AsyncIterator[RemoteStage]:
    """An adder on a node with this ledger, from afar."""
    backend = ToyBackend(0, 3)
    service = StageService([backend], ledger, ledger.node)
    async with plain_task_group() as tasks:

        async def connect() -> MemoryTransport:
            link = MemoryLink(name="link")
            tasks.start_soon(service.serve, link.server)
            return link.client

        yield RemoteStage(backend.describe(), ledger.node, connect)
        tasks.cancel_scope.cancel()


async def test_receipt_says_what_the_stream_computed(make_ledger: MakeLedger, stored: Stored) -> None:
    """Over two sessions, the first of which is lost with its transport."""
    work = Work(request_id="request", work_id="work", account="alice")
    async with make_ledger() as ledger:
        async with stage_over(ledger) as stage:
            session = await stage.open_session(work=work)
            await session.forward_piece(tokens=[1, 2, 3], output=Output.NONE)
            await session.release()
            session = await stage.open_session(work=work.again())
            await session.forward_piece(tokens=[1, 2, 3], output=Output.NONE)
            await session.forward_piece(tokens=[4], output=Output.TOKEN)
            await session.close("stop")
            with pytest.raises(GgufWorkerError) as raised:
                await stage.open_session(work=work.again())
            assert raised.value.code == "work_settled"
        await ledger.flush()
        (receipt,) = stored()
    assert (receipt.rows, receipt.rows_replayed, receipt.tokens_sampled) == (7, 3, 1)
    assert (receipt.finish_reason, receipt.sessions) == ("stop", 2)
    assert (receipt.account, receipt.request_id, list(receipt.layers)) == ("alice", "request", ["0:3"])
    assert receipt.bytes_in > 0
    assert receipt.bytes_out > 0


async def test_span_of_the_node_is_in_the_clients_trace(
    make_ledger: MakeLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    monkeypatch.setattr(gguf_worker.telemetry.spans, "tracer_of", lambda: tracer)
    generation = begin_generation(Work())
    async with make_ledger() as ledger, stage_over(ledger) as stage:
        session = await stage.open_session(work=generation.work)
        await session.forward_piece(tokens=[1, 2], output=Output.NONE)
        await session.close("length")
    generation.end()
    of_node, of_client = exporter.get_finished_spans()
    assert (of_node.name, of_client.name) == ("stage 0:3", "generation")
    assert of_node.context is not None
    assert of_client.context is not None
    assert of_node.parent is not None
    assert of_node.context.trace_id == of_client.context.trace_id
    assert of_node.parent.span_id == of_client.context.span_id
    attributes = dict(of_node.attributes or {})
    assert (attributes["gguf_worker.rows"], attributes["gguf_worker.finish_reason"]) == (2, "length")
    assert attributes["gguf_worker.node"] == "node-a"
