"""A node from its registration to its drain; whatever its backends are."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from gguf_worker import Route
from gguf_worker.generation.record import GenerationRecord
from gguf_worker.node import service as node_module
from gguf_worker.node.config import NodeConfig, NodeConfigError, usual_name
from gguf_worker.node.grpc import GrpcDialer
from gguf_worker.node.mesh import Mesh
from gguf_worker.node.paths import GRPC, Paths
from gguf_worker.node.receipts.ledger import SqliteLedger
from gguf_worker.node.receipts.query import ReceiptQuery, open_ledger
from gguf_worker.node.service import NodeService, Surroundings, node_service
from gguf_worker.node.tracker.formation import Wanted
from gguf_worker.node.tracker.memory import MemoryTracker
from gguf_worker.node.tracker.registration import is_name
from gguf_worker.node.tracker.tracker import Superseded, TrackerError
from gguf_worker.testing.mesh.here import unmeasured_certificate
from gguf_worker_v1 import registration_pb2
from meshes import SEEDED, mesh_here
from node.memory_ledger import MemoryLedger
from node.toy_backend import ToyBackend

pytestmark = pytest.mark.anyio


async def test_registration_says_what_the_worker_attested(tmp_path: Path) -> None:
    """Identity, ownership, memory, capacity and build, field by field; nothing that was only asked for."""
    async with mesh_here(tmp_path, {"node-a": "middle"}) as here:
        registration = here.tracker.view().registrations["node-a"]
        node = here.nodes["node-a"]
        worker = node.supervisors[0].worker
        assert worker is not None
        (stage,) = registration.stages
        assert (stage.identity.start, stage.identity.end) == (worker.identity.start, worker.identity.end)
        assert (stage.identity.artifact, stage.identity.shard) == (
            worker.identity.artifact,
            worker.identity.shard,
        )
        assert stage.ownership.bytes == worker.ownership.bytes
        assert stage.ownership.owned_layers == worker.ownership.owned_layers == 4
        assert not stage.ownership.token_embedding
        assert not stage.ownership.output_head
        assert stage.memory.weights_bytes == worker.memory.weights_bytes
        assert stage.capacity.max_sessions == worker.capacity.max_sessions
        assert stage.build.library_commit == worker.hello.build.library_commit
        assert (stage.state, stage.restarts) == ("ready", 0)
        (endpoint,) = registration.endpoints
        assert (endpoint.kind, endpoint.tls) == ("grpc", False)
        assert list(registration.certificate_ids) == [unmeasured_certificate(stage).id]
        assert registration.instance == node.service.instance


async def test_registration_follows_the_worker(tmp_path: Path) -> None:
    """A stage whose worker died is registered no more, and again when another took its place."""
    async with mesh_here(tmp_path, {"node-a": "middle"}) as here:
        view = here.tracker.view()
        seen: list[list[int]] = []
        pid = here.nodes["node-a"].supervisors[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with anyio.fail_after(20):
            while not seen or seen[-1] != [1]:
                view = await here.tracker.changed(view)
                seen.append([stage.restarts for stage in view.registrations["node-a"].stages])


async def test_node_leaves_the_tracker_before_its_sessions_end(tmp_path: Path) -> None:
    """A text that goes on through it is finished; nobody new comes."""
    async with AsyncExitStack() as outside, anyio.create_task_group() as tasks:
        tracker = await outside.enter_async_context(MemoryTracker())
        dialer = await outside.enter_async_context(GrpcDialer())
        left, leave = anyio.Event(), anyio.Event()

        async def serve() -> None:
            async with _toy_node(tmp_path, tracker, drain_timeout_s=20.0):
                await leave.wait()
            left.set()

        tasks.start_soon(serve)
        mesh = Mesh(tracker, Paths({GRPC: dialer}))
        async with mesh.route(await mesh.plan(Wanted())) as route:
            generation = route.generate([1, 2], max_tokens=4)
            async for step in generation:
                if step.index == 1:
                    leave.set()
                    view = tracker.view()
                    while "toys" in view.registrations:
                        view = await tracker.changed(view)
                    assert not left.is_set()
            assert generation.record.finish_reason == "length"
        await left.wait()


async def test_backend_without_gguf_goes_the_same_way(tmp_path: Path) -> None:
    """Registration, certificate, route, streams, record and receipts know nothing of what computes."""
    async with AsyncExitStack() as stack:
        tracker = await stack.enter_async_context(MemoryTracker())
        dialer = await stack.enter_async_context(GrpcDialer())
        node = await stack.enter_async_context(_toy_node(tmp_path, tracker))
        mesh = Mesh(tracker, Paths({GRPC: dialer}))
        plan = await mesh.plan(Wanted())
        assert [stage.layers for stage in plan.stages] == [(0, 1), (1, 2), (2, 3)]
        async with mesh.route(plan) as route:
            record = await _generated(route)
        assert node.streams.open_sessions == 0
        assert [stage.forwards for stage in record.stages] == [5, 5, 5]
        assert all(stage.kv_cells_freed for stage in record.stages)
        work_id = record.work_id
    with open_ledger(tmp_path / "toys.sqlite") as book:
        (receipt,) = book.select(ReceiptQuery())
    assert (receipt.work_id, receipt.finish_reason) == (work_id, "length")
    assert list(receipt.layers) == ["0:1", "1:2", "2:3"]
    assert receipt.tokens_sampled == 5


async def test_second_node_of_a_name_ends_the_first(tmp_path: Path) -> None:
    """The first one says so; the other goes on."""
    (tmp_path / "other").mkdir()
    async with MemoryTracker() as tracker, anyio.create_task_group() as tasks:
        errors, told = [], anyio.Event()

        async def first() -> None:
            try:
                async with _toy_node(tmp_path, tracker):
                    await anyio.sleep_forever()
            except Superseded as error:
                errors.append(error)
                told.set()

        tasks.start_soon(first)
        view = tracker.view()
        while not view.registrations:
            view = await tracker.changed(view)
        async with _toy_node(tmp_path / "other", tracker) as node:
            await told.wait()
            assert "toys" in errors[0].message
            assert tracker.view().registrations["toys"].instance == node.instance


@pytest.mark.parametrize("name", ["", "a.b", "-a", "a" * 64, "ä", "a b"])
def test_name_that_is_none_is_refused(name: str) -> None:
    """It would be no part of a subject."""
    with pytest.raises(NodeConfigError, match="is no name for a node"):
        NodeConfig(name=name)


def test_usual_name_is_one() -> None:
    """Whatever this machine is called."""
    assert is_name(usual_name())


@asynccontextmanager
async def _toy_node(
    folder: Path, tracker: MemoryTracker, *, drain_timeout_s: float = 0.1
) -> AsyncIterator[NodeService]:
    """A node called `toys` with every stage of the toy model."""
    backends = [ToyBackend(start, start + 1) for start in range(3)]
    config = NodeConfig(name="toys", is_dialled=True, heartbeat_s=0.1, drain_timeout_s=drain_timeout_s)
    certificate = unmeasured_certificate(backends[0].describe())
    async with SqliteLedger(folder / "toys.sqlite", node="toys") as ledger:
        around = Surroundings(ledger=ledger, tracker=tracker, certificates=[certificate])
        async with node_service(config, backends, around) as node:
            yield node


async def _generated(route: Route) -> GenerationRecord:
    generation = route.generate([1, 2, 3], max_tokens=5, sampling=SEEDED)
    assert len([step async for step in generation]) == 5
    return generation.record


async def test_certificate_that_cannot_be_published_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However long NATS is gone; the node is registered when it is back."""
    monkeypatch.setattr(node_module, "RETRY_S", 0.0)
    caplog.set_level(logging.INFO)
    left = ["gone"] * 5

    class Tracker(MemoryTracker):
        async def publish_certificate(self, certificate: registration_pb2.Certificate) -> None:
            if left:
                raise TrackerError(left.pop(), retryable=True)
            await super().publish_certificate(certificate)

    backend = ToyBackend(0, 3)
    certificate = unmeasured_certificate(backend.describe())
    async with Tracker() as tracker:
        around = Surroundings(ledger=MemoryLedger(), tracker=tracker, certificates=[certificate])
        async with node_service(NodeConfig(name="node-a", is_dialled=True), [backend], around) as node:
            with anyio.fail_after(5):
                while not node.is_registered:
                    await tracker.changed(tracker.view())
    told = [one for one in caplog.records if getattr(one, "event", "") == "certificate_unpublished"]
    assert len(told) == 1
