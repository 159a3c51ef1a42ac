"""A node in this process: supervised shards behind a gRPC server, a relay, a tracker and a ledger."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gguf_worker._tasks import plain_task_group
from gguf_worker.node.config import NodeConfig
from gguf_worker.node.gguf_backend import GgufBackend
from gguf_worker.node.nats import Nats
from gguf_worker.node.receipts.ledger import SqliteLedger
from gguf_worker.node.receipts.publisher import publish_receipts
from gguf_worker.node.service import NodeService, Surroundings, node_service
from gguf_worker.node.tracker.tracker import Tracker
from gguf_worker.supervision.settings import WorkerSettings
from gguf_worker.supervision.spec import ShardSpec
from gguf_worker.supervision.supervisor import Supervisor
from gguf_worker_v1 import common_pb2, registration_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHere:
    """A node that runs in this process."""

    service: NodeService
    supervisors: tuple[Supervisor, ...]
    ledger: SqliteLedger

    @property
    def name(self) -> str:
        return self.service.config.name


def unmeasured_certificate(stage: common_pb2.Stage) -> registration_pb2.Certificate:
    """Lets a mesh use a stage that nobody measured. The fake engine is exact and invariant by construction;
    of any other no invariance is claimed, so that it replays in the pieces of the first time."""
    identity, build = stage.identity, stage.build
    is_fake = build.engine == "fake"
    said = f"{identity.artifact} {sorted(identity.recipe.items())} {build.engine} {build.library_commit}"
    return registration_pb2.Certificate(
        id=hashlib.sha256(said.encode()).hexdigest(),
        artifact=identity.artifact,
        recipe=identity.recipe,
        engine=build.engine,
        library_commit=build.library_commit,
        exact=True,
        batch_invariant=is_fake,
        chunk_invariant=is_fake,
    )


@asynccontextmanager
async def node_here(
    config: NodeConfig,
    shards: Sequence[ShardSpec],
    *,
    tracker: Tracker,
    folder: Path,
    nats: Nats | None = None,
    settings: WorkerSettings | None = None,
) -> AsyncIterator[NodeHere]:
    """Starts the shards, and serves them while this is open, as if they were certified. The ledger is in
    `folder`."""
    async with AsyncExitStack() as stack:
        ledger = SqliteLedger(folder / f"{config.name}.sqlite", node=config.name)
        await stack.enter_async_context(ledger)
        if nats is not None:
            tasks = await stack.enter_async_context(plain_task_group())
            stack.callback(tasks.cancel_scope.cancel)
            tasks.start_soon(publish_receipts, ledger, nats)
        supervisors = tuple(Supervisor(shard, settings=settings) for shard in shards)
        for supervisor in supervisors:
            await stack.enter_async_context(supervisor)
        backends = [GgufBackend(supervisor) for supervisor in supervisors]
        certificates = [unmeasured_certificate(backend.describe()) for backend in backends]
        around = Surroundings(ledger=ledger, tracker=tracker, nats=nats, certificates=certificates[:1])
        service = await stack.enter_async_context(node_service(config, backends, around))
        yield NodeHere(service=service, supervisors=supervisors, ledger=ledger)
