"""What a node stands in, opened for `serve`; and the ways to nodes, opened for whoever uses them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gguf_worker._memory import keep_large_blocks
from gguf_worker.certification import read_certificate
from gguf_worker.cli.errors import CommandError
from gguf_worker.cli.node_options import NodeOptions, PeerOptions
from gguf_worker.cli.options import TrackerOptions
from gguf_worker.node.config import NodeConfig, usual_name
from gguf_worker.node.gguf_backend import GgufBackend
from gguf_worker.node.grpc import GrpcDialer, GrpcOptions
from gguf_worker.node.nats import Nats, NatsOptions, connect_nats
from gguf_worker.node.part import NodePart
from gguf_worker.node.paths import GRPC, GRPC_TLS, NATS, Paths
from gguf_worker.node.receipts.ledger import SqliteLedger, default_ledger_path
from gguf_worker.node.receipts.publisher import publishing
from gguf_worker.node.relay.dialer import RelayDialer
from gguf_worker.node.service import Surroundings, node_service
from gguf_worker.node.tracker.certificates import certificate_message
from gguf_worker.node.tracker.jetstream import JetStreamTracker
from gguf_worker.node.tracker.memory import MemoryTracker
from gguf_worker.node.tracker.tracker import Tracker
from gguf_worker.node.transport import Dialer
from gguf_worker.serving.service import Service
from gguf_worker.telemetry import exporting


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedNode:
    """A node as the command line asks for it."""

    config: NodeConfig
    grpc: GrpcOptions
    nats: NatsOptions | None
    """None: the mesh is this process."""
    certificates: tuple[Path, ...]
    ledger: Path

    @classmethod
    def of(
        cls, options: NodeOptions, tracker: TrackerOptions, *, drain_timeout_s: float
    ) -> ServedNode | None:
        """Raises CommandError and GgufWorkerError."""
        if options.listen is None and not options.relay:
            raise CommandError(
                "a node that nobody can reach serves nobody",
                remedy="give --listen HOST:PORT, --relay, or both",
            )
        if options.listen is None and (unused := options.of_listening):
            raise CommandError(
                f"{', '.join(unused)}: nothing is listened on",
                remedy="give --listen HOST:PORT as well, or leave that out",
            )
        if tracker.tracker is None and options.relay:
            raise CommandError("--relay goes over NATS", remedy="give --tracker nats://HOST:PORT as well")
        config = NodeConfig(
            name=options.node or usual_name(),
            is_dialled=options.listen is not None,
            advertise=options.advertised(),
            relay=options.relay,
            drain_timeout_s=drain_timeout_s,
        )
        is_alone = tracker.tracker is None or tracker.in_memory
        return cls(
            config=config,
            grpc=options.grpc(),
            nats=None if is_alone else tracker.nats_options(config.name),
            certificates=tuple(options.certificate or ()),
            ledger=options.ledger or default_ledger_path(),
        )


@asynccontextmanager
async def surroundings(node: ServedNode) -> AsyncIterator[Surroundings]:
    """Connection, tracker and ledger of a node, while this is open. Raises why one cannot be had."""
    keep_large_blocks()
    certificates = tuple(certificate_message(read_certificate(path)) for path in node.certificates)
    async with AsyncExitStack() as stack:
        stack.enter_context(exporting())
        nats = None
        if node.nats is not None:
            nats = await stack.enter_async_context(connect_nats(node.nats))
        ledger = await stack.enter_async_context(SqliteLedger(node.ledger, node=node.config.name))
        tracker = await stack.enter_async_context(tracker_over(nats))
        if nats is not None:
            await stack.enter_async_context(publishing(ledger, nats))
        yield Surroundings(
            ledger=ledger,
            open_works=lambda: ledger.open_works,
            tracker=tracker,
            nats=nats,
            grpc=node.grpc,
            certificates=certificates,
        )


def tracker_over(nats: Nats | None) -> Tracker:
    """In NATS, or in this process."""
    return MemoryTracker() if nats is None else JetStreamTracker(nats)


@asynccontextmanager
async def paths_to_nodes(options: PeerOptions, nats: Nats) -> AsyncIterator[Paths]:
    """The ways that a client has, while this is open: direct ones first."""
    async with AsyncExitStack() as stack:
        dialers: dict[str, Dialer] = {}
        if not options.relay_only:
            for kind in (GRPC_TLS, GRPC):
                grpc = GrpcDialer(options.grpc(tls=kind == GRPC_TLS))
                dialers[kind] = await stack.enter_async_context(grpc)
        dialers[NATS] = RelayDialer(nats, token=options.token())
        yield Paths(dialers)


@asynccontextmanager
async def node_of_shards(service: Service, config: NodeConfig, around: Surroundings) -> AsyncIterator[None]:
    """The shards of a service as a node, shown on its pages while this is open."""
    backends = [GgufBackend(shard.supervisor) for shard in service.shards]
    try:
        async with node_service(config, backends, around) as node:
            service.parts["node"] = NodePart(node, around)
            yield
    finally:  # it is shown while it drains as well
        service.parts.pop("node", None)
