"""A node: backends that are served as stages, over gRPC and over a relay, and known to a tracker."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

import anyio
from anyio.abc import TaskGroup

from gguf_worker._tasks import plain_task_group
from gguf_worker.errors import GgufWorkerError
from gguf_worker.logs import log_event
from gguf_worker.node.backend import ModelBackend
from gguf_worker.node.config import NodeConfig, NodeConfigError, check_can_be_dialled
from gguf_worker.node.grpc import GrpcOptions, GrpcServer, grpc_server
from gguf_worker.node.ledger import Ledger
from gguf_worker.node.nats import Nats
from gguf_worker.node.paths import GRPC, NATS
from gguf_worker.node.relay.listener import relay_listener
from gguf_worker.node.stage_service import StageService
from gguf_worker.node.tracker.registration import described, make_registration
from gguf_worker.node.tracker.renewal import register_and_renew
from gguf_worker.node.tracker.tracker import Tracker, TrackerError
from gguf_worker.node.versions import SOFTWARE
from gguf_worker.work import new_id
from gguf_worker_v1 import registration_pb2

log = logging.getLogger(__name__)

WITHDRAW_S = 5.0
"""How long the tracker is waited for at the end."""
GRACE_S = 0.5
"""How long streams may take to end by themselves after the node has waited for its sessions."""
RETRY_S = 1.0
"""Between two attempts to tell the tracker of a certificate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a node stands in; whoever opened it closes it, after the node was left."""

    ledger: Ledger
    open_works: Callable[[], int] = lambda: 0
    """How many works have no receipt yet."""
    tracker: Tracker | None = None
    """Whom it tells of itself; None where nobody is told."""
    nats: Nats | None = None
    """What relayed streams come over."""
    grpc: GrpcOptions = field(default_factory=GrpcOptions)
    certificates: Sequence[registration_pb2.Certificate] = ()
    """That it knows for its stages."""


class NodeService:
    """A node while it runs; `node_service` makes one."""

    def __init__(self, config: NodeConfig, backends: Sequence[ModelBackend], around: Surroundings) -> None:
        self.config = config
        self.instance = new_id()
        """Of this run."""
        self.backends = tuple(backends)
        self.streams = StageService(backends, around.ledger, config.name)
        """Takes their streams."""
        self.endpoints: tuple[registration_pb2.Endpoint, ...] = ()
        """Where it is reached."""
        self.server: GrpcServer | None = None
        """Where it is dialled."""
        self.is_draining = False
        self._around = around
        self._changed = anyio.Event()
        self._changes = 0
        self._changes_told = 0
        self._registering = anyio.CancelScope()
        self._withdrawn = anyio.Event()

    # ---- what it is ----

    @property
    def is_registered(self) -> bool:
        """Whether the tracker has it, as far as is known here."""
        tracker, name = self._around.tracker, self.config.name
        if tracker is None or name not in (known := tracker.view().registrations):
            return False
        return known[name].instance == self.instance

    def registration(self) -> registration_pb2.Registration:
        """What it tells a tracker: all of it attested by its stages."""
        return make_registration(
            node=self.config.name,
            instance=self.instance,
            software=SOFTWARE,
            stages=described(self.backends),
            endpoints=self.endpoints,
            certificates=self._around.certificates,
            lease_s=self.config.lease_s,
            draining=self.is_draining,
        )

    async def wait_for_change(self) -> None:
        """Returns when `registration` says something else than it told the tracker last."""
        while self._changes == self._changes_told:
            await self._changed.wait()

    # ---- its life ----

    def start(self, tasks: TaskGroup) -> None:
        """Begins with what a node does by itself."""
        for backend in self.backends:  # before anybody is told what they are, so that no change is missed
            tasks.start_soon(self._follow, backend, name="changes of a stage")
        if self._around.tracker is not None:
            tasks.start_soon(self._stay_registered, self._around.tracker, name="registration")
        else:
            self._withdrawn.set()
        tasks.start_soon(self._keep_load_fresh, name="load of the stages")

    async def leave(self) -> None:
        """Takes itself off the tracker, then waits until its sessions have ended, within the time of its
        configuration."""
        self.is_draining = True
        self._note_change()
        await self.withdraw()
        if self.server is not None:
            await self.server.drain()
        if not await self._drain(self.config.drain_timeout_s):
            text = f"sessions that did not end within {self.config.drain_timeout_s:g} s are cut off"
            log_event(log, logging.WARNING, "node_drain_timeout", text)

    async def withdraw(self) -> None:
        """Takes itself off the tracker, as far as that can be told."""
        self._registering.cancel()
        with anyio.move_on_after(WITHDRAW_S, shield=True):
            await self._withdrawn.wait()

    async def _drain(self, timeout_s: float) -> bool:
        ended = []

        async def drain(backend: ModelBackend) -> None:
            ended.append(await backend.drain(timeout_s))

        async with plain_task_group() as tasks:
            for backend in self.backends:
                tasks.start_soon(drain, backend)
        return all(ended)

    async def _stay_registered(self, tracker: Tracker) -> None:
        try:
            with self._registering:
                await self._publish_certificates(tracker)
                await register_and_renew(
                    tracker, self._tell, self.wait_for_change, heartbeat_s=self.config.heartbeat_s
                )
        finally:
            self._withdrawn.set()

    def _tell(self) -> registration_pb2.Registration:
        self._changes_told = self._changes
        return self.registration()

    async def _publish_certificates(self, tracker: Tracker) -> None:
        """A tracker that cannot be told now is told later; the node is dark until then."""
        is_told = False
        for certificate in self._around.certificates:
            while True:
                try:
                    await tracker.publish_certificate(certificate)
                    break
                except TrackerError as error:
                    level = logging.DEBUG if is_told else logging.WARNING
                    text = f"certificate {certificate.id} is not published yet: {error.message}"
                    log_event(log, level, "certificate_unpublished", text)
                    is_told = True
                    await anyio.sleep(RETRY_S)

    async def _follow(self, backend: ModelBackend) -> None:
        """Counts the changes of a stage."""
        seen = backend.describe()
        while True:
            await backend.wait_for_change(seen)
            seen = backend.describe()
            self._note_change()

    async def _keep_load_fresh(self) -> None:
        """`describe` says the load that was asked for last."""
        while True:
            for backend in self.backends:
                with contextlib.suppress(GgufWorkerError):  # it is not ready; `describe` says so
                    await backend.capacity()
            await anyio.sleep(self.config.heartbeat_s / 2)

    def _note_change(self) -> None:
        self._changes += 1
        self._changed.set()
        self._changed = anyio.Event()


@asynccontextmanager
async def node_service(
    config: NodeConfig, backends: Sequence[ModelBackend], around: Surroundings
) -> AsyncIterator[NodeService]:
    """Serves the backends while this is open. Leaving it takes the node off the tracker, waits for its
    sessions for `config.drain_timeout_s` and ends what is left; where the body failed, it does not wait."""
    node = NodeService(config, backends, around)
    async with AsyncExitStack() as stack:
        node.endpoints = await _listen(node, around, stack)
        where = [f"{endpoint.kind} {endpoint.address}" for endpoint in node.endpoints]
        text = f"node {config.name} is reached by {' and '.join(where) or 'nobody'}"
        log_event(log, logging.INFO, "node_listening", text, node=config.name, endpoints=where)
        async with plain_task_group() as tasks:
            node.start(tasks)
            try:
                yield node
                await node.leave()
            finally:
                await node.withdraw()
                tasks.cancel_scope.cancel()


async def _listen(
    node: NodeService, around: Surroundings, stack: AsyncExitStack
) -> tuple[registration_pb2.Endpoint, ...]:
    """Opens what streams come through, and gives the node's endpoints."""
    config = node.config
    endpoints = []
    if config.is_dialled:
        node.server = server = await stack.enter_async_context(
            grpc_server(
                node.streams,
                describe=node.registration,
                backends=node.backends,
                options=replace(around.grpc, grace_s=GRACE_S),
            )
        )
        addresses = (config.advertise,) if config.advertise else server.addresses
        for address in addresses:
            check_can_be_dialled(address)
        endpoints += [registration_pb2.Endpoint(kind=GRPC, address=a, tls=server.tls) for a in addresses]
    if config.relay:
        if around.nats is None:
            raise NodeConfigError(
                "a relay goes over NATS, and there is none (give --tracker nats://HOST:PORT)"
            )
        tokens = around.grpc.tokens
        relay = relay_listener(
            around.nats,
            config.name,
            node.streams,
            instance=node.instance,
            authenticate=None if tokens is None else tokens.account_of_token,
        )
        await stack.enter_async_context(relay)
        endpoints.append(registration_pb2.Endpoint(kind=NATS, address=config.name))
    return tuple(endpoints)
