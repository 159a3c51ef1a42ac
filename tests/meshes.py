"""Meshes of nodes in this process: three stages of the fake model, as many nodes of each as a test wants."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fakes import MODEL, PROMPT
from gguf_worker import RestartPolicy, Sampling, ShardSpec, Step, WorkerSettings
from gguf_worker.generation import Generation, Route
from gguf_worker.node.config import NodeConfig
from gguf_worker.node.grpc import GrpcDialer
from gguf_worker.node.mesh import Mesh, MeshSettings
from gguf_worker.node.paths import GRPC, Paths
from gguf_worker.node.tracker.memory import MemoryTracker
from gguf_worker.testing.mesh.here import NodeHere, node_here

RANGES = {"first": (0, 4), "middle": (4, 8), "last": (8, 12)}
SEEDED = Sampling(temperature=1.0, seed=3, top_logprobs=4)


@dataclass
class MeshHere:
    """Nodes by name, and a client of them."""

    folder: Path
    tracker: MemoryTracker
    mesh: Mesh
    stack: AsyncExitStack
    nodes: dict[str, NodeHere] = field(default_factory=dict)

    async def start(self, name: str, stage: str, restart: RestartPolicy = PROMPT) -> NodeHere:
        """A node that holds the layers of a stage; it ends with the mesh."""
        spec = ShardSpec(MODEL, layers=RANGES[stage], engine="fake")
        config = NodeConfig(name=name, is_dialled=True, heartbeat_s=0.5, drain_timeout_s=0.1)
        entering = node_here(
            config,
            [spec],
            tracker=self.tracker,
            folder=self.folder,
            settings=WorkerSettings(restart=restart),
        )
        self.nodes[name] = await self.stack.enter_async_context(entering)
        view = self.tracker.view()
        while name not in view.registrations:
            view = await self.tracker.changed(view)
        return self.nodes[name]

    def kill_worker(self, name: str) -> None:
        """SIGKILL."""
        pid = self.nodes[name].supervisors[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)


@asynccontextmanager
async def mesh_here(
    folder: Path,
    stages: Mapping[str, str] | None = None,
    settings: MeshSettings | None = None,
) -> AsyncIterator[MeshHere]:
    """Nodes that are ready, by default one for each stage and named like it."""
    async with AsyncExitStack() as stack:
        tracker = await stack.enter_async_context(MemoryTracker())
        dialer = await stack.enter_async_context(GrpcDialer())
        mesh = Mesh(tracker, Paths({GRPC: dialer}), settings=settings)
        here = MeshHere(folder=folder, tracker=tracker, mesh=mesh, stack=stack)
        for name, stage in ({stage: stage for stage in RANGES} if stages is None else stages).items():
            await here.start(name, stage)
        yield here


async def steps_of(generation: Generation) -> list[Step]:
    """All of them."""
    return [step async for step in generation]


async def undisturbed(max_tokens: int) -> list[Step]:
    """What the whole model says in one worker of this machine: `SEEDED`, after `Hello`."""
    async with Route.start([ShardSpec(MODEL, engine="fake")]) as route:
        tokens = await route.tokenize("Hello")
        return await steps_of(route.generate(tokens, max_tokens=max_tokens, sampling=SEEDED))
