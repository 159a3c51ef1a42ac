"""What `serve` opens around a node, and how it is closed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gguf_worker.cli.node import ServedNode, node_of_shards, surroundings
from gguf_worker.node.config import NodeConfig
from gguf_worker.node.grpc import GrpcOptions
from gguf_worker.node.nats import NatsOptions, connect_nats
from gguf_worker.node.receipts.stream import published_receipts
from gguf_worker.node.service import Surroundings
from gguf_worker.node.tracker.memory import MemoryTracker
from gguf_worker.serving.service import Service
from gguf_worker.testing.nats import NatsServer
from gguf_worker.work import Work
from ledgers import ARTIFACT, LAYERS, use
from node.memory_ledger import MemoryLedger

pytestmark = pytest.mark.anyio


async def test_node_that_ends_in_order_publishes_its_last_receipts(tmp_path: Path) -> None:
    """Of the work that ended just now, and of the one that nobody ended."""
    async with NatsServer(jetstream=True) as server:
        options = NatsOptions(servers=(server.url,))
        node = ServedNode(
            config=NodeConfig(name="node-a", is_dialled=True),
            grpc=GrpcOptions(),
            nats=options,
            certificates=(),
            ledger=tmp_path / "receipts.sqlite",
        )
        async with surroundings(node) as around:
            for name, reason in (("ended", "stop"), ("open", "")):
                entry = await around.ledger.open(Work(work_id=name), artifact=ARTIFACT, layers=LAYERS)
                await entry.count(use(0, 1))
                await entry.close(reason)
        async with connect_nats(options) as nats:
            found = {each.work_id: each.finish_reason async for each in published_receipts(nats)}
    assert found == {"ended": "stop", "open": "interrupted"}


async def test_node_is_shown_until_it_has_drained() -> None:
    """That is when somebody wants to see whom it waits for."""
    service, shown = Service("model"), []

    class Tracker(MemoryTracker):
        async def withdraw(self, node: str, instance: str) -> None:
            shown.append(service.parts["node"].status()["draining"])
            await super().withdraw(node, instance)

    async with Tracker() as tracker:
        around = Surroundings(ledger=MemoryLedger(), tracker=tracker)
        async with node_of_shards(service, NodeConfig(name="node-a", is_dialled=True), around):
            await tracker.changed(tracker.view())
    assert (shown, service.parts) == ([True], {})
