"""A mesh of processes on this machine, and a client of it: what the faults befall."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from gguf_worker._tasks import plain_task_group
from gguf_worker.generation.generate import Step
from gguf_worker.generation.route import Route
from gguf_worker.node.grpc import GrpcDialer
from gguf_worker.node.mesh import Mesh, MeshSettings
from gguf_worker.node.nats import Nats, NatsOptions, connect_nats
from gguf_worker.node.paths import GRPC, NATS, Paths
from gguf_worker.node.relay.dialer import RelayDialer
from gguf_worker.node.tracker.jetstream import JetStreamTracker
from gguf_worker.protocol.messages import Sampling
from gguf_worker.supervision.spec import ShardSpec
from gguf_worker.testing.mesh.here import unmeasured_certificate
from gguf_worker.testing.mesh.node import NodeProcess, NodeSpec
from gguf_worker.testing.mesh.witness import Witness
from gguf_worker.testing.nats import NatsServer
from gguf_worker.testing.proxy import Proxy, proxy_to

PATIENT = ("--restart-backoff", "0", "--restarts", "1000000")
"""Of the nodes: patience with workers that are killed on purpose."""
PROMPT = "The first rule of a good workshop"
SAMPLING = Sampling(temperature=1.0, seed=11, top_logprobs=8)
SETTINGS = MeshSettings(form_s=30.0, replace_s=30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the nodes hold."""

    model: str
    cuts: tuple[int, int, int]
    """Where the first, the middle and the last stage end."""
    row_bytes: int
    """Of a boundary row."""
    options: tuple[str, ...]
    """Of `serve`."""

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """Layers by node; two have those in the middle."""
        one, two, end = self.cuts
        return {"first": (0, one), "middle": (one, two), "spare": (one, two), "last": (two, end)}


FAKE = Held(
    model="fake:layers=12,embd=8,vocab=256",
    cuts=(4, 8, 12),
    row_bytes=32,
    options=("--engine", "fake", "--parallel", "64"),  # room for many
)


@dataclass(kw_only=True)
class Site:
    """Everything that is there."""

    folder: Path
    server: NatsServer
    proxy: Proxy
    """Stands between the client and the server; the nodes go past it."""
    nats: Nats
    tracker: JetStreamTracker
    witness: Witness
    direct: Mesh
    """Dials first."""
    relayed: Mesh
    """Goes through the relay only."""
    held: Held
    tasks: TaskGroup
    """For what goes on beside a text."""
    nodes: dict[str, NodeProcess] = field(default_factory=dict)
    _stacks: dict[str, AsyncExitStack] = field(default_factory=dict)

    async def start(self, names: Iterable[str]) -> None:
        """Starts nodes, all at once, and waits until the client knows of them."""
        for name in names:
            self._stacks[name] = AsyncExitStack()
            spec = NodeSpec(
                name=name,
                model=self.held.model,
                layers=self.held.ranges[name],
                tracker=self.server.url,
                folder=self.folder,
                is_relayed=True,
                options=(*self.held.options, *PATIENT),
            )
            self.nodes[name] = await self._stacks[name].enter_async_context(NodeProcess(spec))
        async with plain_task_group() as tasks:
            for name in names:
                tasks.start_soon(self.nodes[name].wait_ready)
        await self.wait_known(set(names))

    async def stop(self, name: str) -> None:
        """Ends a node in good order; one that was killed is put away."""
        await self._stacks.pop(name).aclose()
        del self.nodes[name]

    async def stop_all(self) -> None:
        """Ends every node in good order, all at once."""
        async with plain_task_group() as tasks:
            for name in list(self.nodes):
                tasks.start_soon(self.stop, name)

    async def restart(self, name: str) -> None:
        """A node that was killed, once more, with its ledger."""
        await self.stop(name)
        await self.start([name])

    async def wait_known(self, names: set[str], *, gone: bool = False) -> None:
        """Returns when the client's tracker has stages of these nodes; or none of them any more."""
        while True:
            view = self.tracker.view()
            here = {node for node, registration in view.registrations.items() if registration.stages}
            if (names.isdisjoint(here)) if gone else (names <= here):
                return
            await self.tracker.changed(view)

    async def certify(self) -> None:
        """Lets routes be formed of the nodes that are known."""
        registration = next(iter(self.tracker.view().registrations.values()))
        await self.tracker.publish_certificate(unmeasured_certificate(registration.stages[0]))


@asynccontextmanager
async def site(held: Held = FAKE) -> AsyncIterator[Site]:
    """A server, a node for each of `held.ranges`, and a client; all gone afterwards."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gguf-worker-site-")))
        server = await stack.enter_async_context(NatsServer(jetstream=True, folder=folder / "nats"))
        proxy = await stack.enter_async_context(proxy_to(server.host, server.port))
        options = NatsOptions(servers=(f"nats://127.0.0.1:{proxy.port}",), name="client")
        nats = await stack.enter_async_context(connect_nats(options))
        tracker = await stack.enter_async_context(JetStreamTracker(nats))
        witness = Witness(held.row_bytes)
        grpc = await stack.enter_async_context(GrpcDialer())
        tasks = await stack.enter_async_context(plain_task_group())
        ways = {GRPC: witness.dialer(grpc), NATS: witness.dialer(RelayDialer(nats))}
        here = Site(
            folder=folder,
            server=server,
            proxy=proxy,
            nats=nats,
            tracker=tracker,
            witness=witness,
            direct=Mesh(tracker, Paths(ways), settings=SETTINGS),
            relayed=Mesh(tracker, Paths({NATS: ways[NATS]}), settings=SETTINGS),
            held=held,
            tasks=tasks,
        )
        try:
            await here.start(held.ranges)
            await here.certify()
            yield here
        finally:
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await here.stop_all()


async def undisturbed(n_tokens: int) -> list[Step]:
    """What the whole model says in one worker of this process."""
    async with Route.start([ShardSpec(FAKE.model, engine="fake")]) as route:
        tokens = await route.tokenize(PROMPT)
        return [step async for step in route.generate(tokens, max_tokens=n_tokens, sampling=SAMPLING)]
