"""A mesh on this machine: a NATS server, and nodes in processes of their own, as a user serves them."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf_worker._tasks import plain_task_group
from gguf_worker.node.nats import Nats, NatsOptions, connect_nats
from gguf_worker.node.tracker.jetstream import JetStreamTracker
from gguf_worker.testing.mesh.here import unmeasured_certificate
from gguf_worker.testing.mesh.node import NodeProcess, NodeSpec
from gguf_worker.testing.nats import NatsServer

Range = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """What there is of it."""

    server: NatsServer
    nats: Nats
    """A connection of this process."""
    tracker: JetStreamTracker
    processes: Mapping[str, NodeProcess]
    """By the node's name, in the order of the stages."""
    stack: AsyncExitStack
    """Of the nodes."""

    def grpc_address(self, name: str) -> tuple[str, int]:
        """Where a node is dialled."""
        endpoints = self.tracker.view().registrations[name].endpoints
        found = next(endpoint.address for endpoint in endpoints if endpoint.kind == "grpc")
        host, _, port = found.rpartition(":")
        return host, int(port)

    async def http_address(self, name: str) -> tuple[str, int]:
        """Where a node shows its status."""
        line: dict[str, Any] = await self.processes[name].wait_logged("http_listening")
        host, _, port = line["address"].rpartition(":")
        return host, int(port)

    def ledgers(self) -> dict[str, Path]:
        """Where each node keeps its receipts."""
        return {name: node.spec.ledger for name, node in self.processes.items()}

    async def end(self) -> None:
        """Ends the nodes in good order; the NATS server stays."""
        await self.stack.aclose()


@asynccontextmanager
async def nodes(model: str, ranges: Sequence[Range], options: Sequence[str]) -> AsyncIterator[Nodes]:
    """A node for each range of layers (`stage-0` and so on), that is dialled and relayed, and whose shard may
    be used. `options` are those of `serve`."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gguf-worker-bench-")))
        server = await stack.enter_async_context(NatsServer(jetstream=True, folder=folder / "nats"))
        nats = await stack.enter_async_context(connect_nats(NatsOptions(servers=(server.url,), name="bench")))
        tracker = await stack.enter_async_context(JetStreamTracker(nats))
        of_nodes = await stack.enter_async_context(AsyncExitStack())
        found: dict[str, NodeProcess] = {}
        for index, layers in enumerate(ranges):
            name = f"stage-{index}"
            spec = NodeSpec(
                name=name, model=model, layers=layers, tracker=server.url, folder=folder, is_relayed=True,
                options=tuple(options),
            )  # fmt: skip
            found[name] = await of_nodes.enter_async_context(NodeProcess(spec))
        async with plain_task_group() as tasks:
            for node in found.values():
                tasks.start_soon(node.wait_ready)
        await _wait_known(tracker, set(found))
        stage = tracker.view().registrations["stage-0"].stages[0]
        await tracker.publish_certificate(unmeasured_certificate(stage))
        yield Nodes(server=server, nats=nats, tracker=tracker, processes=found, stack=of_nodes)


async def _wait_known(tracker: JetStreamTracker, names: set[str]) -> None:
    """Returns when the tracker has the stages of these nodes."""
    view = tracker.view()
    while not names <= {node for node, one in view.registrations.items() if one.stages}:
        view = await tracker.changed(view)
