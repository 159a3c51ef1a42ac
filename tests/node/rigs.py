"""A node in memory: backends of either kind behind a stage service, and stages from afar over links."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import anyio
from anyio.abc import TaskGroup

from fakes import LAYERS, SETTINGS, spec
from gguf_worker import Recipe, ShardSpec, Supervisor
from gguf_worker._schema import Buffer
from gguf_worker.generation.stage import StageSession
from gguf_worker.node.backend import ModelBackend
from gguf_worker.node.clock import Clock
from gguf_worker.node.gguf_backend import GgufBackend
from gguf_worker.node.remote_session import RemoteTimeouts
from gguf_worker.node.remote_stage import RemoteStage
from gguf_worker.node.stage_service import QUEUED_BYTES, StageService
from gguf_worker.node.stage_stream import StreamSettings
from gguf_worker.protocol.messages import Output, Result
from gguf_worker.testing.memory_transport import MemoryLink, MemoryTransport
from node.memory_ledger import MemoryLedger
from node.toy_backend import ToyBackend

NODE = "node-a"
CUTS = (0, 4, 9, LAYERS)
RECIPE = Recipe(n_batch=32, n_ubatch=16, prefill_chunk=16, boundary="f16")
TOKENS = [1 + index * 7 % 15 for index in range(50)]
"""That both models have."""


@dataclass(slots=True)
class Rig:
    """One node with the stages of a whole model, and the streams that it has."""

    backends: Sequence[ModelBackend]
    service: StageService
    ledger: MemoryLedger
    tasks: TaskGroup
    links: list[MemoryLink] = field(default_factory=list)
    """In the order in which they were dialled."""
    prepare: Callable[[MemoryLink], None] | None = None
    """Faults of the links that are dialled next."""
    account: str = ""
    """Of the streams that are dialled next."""
    _over: list[anyio.Event] = field(default_factory=list)

    async def dial(self, **options: int) -> MemoryLink:
        """A stream that the service serves."""
        link = MemoryLink(name=f"link {len(self.links)}", **options)
        if self.prepare is not None:
            self.prepare(link)
        self.links.append(link)
        self._over.append(anyio.Event())
        self.tasks.start_soon(self._serve, link, self.account, self._over[-1])
        return link

    def stage(self, index: int, *, timeouts: RemoteTimeouts | None = None) -> RemoteStage:
        """One of the stages, from afar."""

        async def connect() -> MemoryTransport:
            return (await self.dial()).client

        return RemoteStage(self.backends[index].describe(), NODE, connect, timeouts=timeouts)

    async def ended(self) -> None:
        """Returns when every stream has ended at the node as well; nothing is left of their sessions."""
        for over in self._over:
            await over.wait()
        for backend in self.backends:
            load = await backend.capacity()
            assert (load.sessions, load.kv_cells_used) == (0, 0)

    async def _serve(self, link: MemoryLink, account: str, over: anyio.Event) -> None:
        await self.service.serve(link.server, account=account)
        over.set()


@asynccontextmanager
async def rig_of(
    backends: Sequence[ModelBackend],
    *,
    clock: Clock | None = None,
    settings: StreamSettings | None = None,
    queued_bytes: int = QUEUED_BYTES,
) -> AsyncIterator[Rig]:
    """A node with these backends. At the end its streams are cut off."""
    ledger = MemoryLedger()
    service = StageService(backends, ledger, NODE, clock=clock, settings=settings, queued_bytes=queued_bytes)
    async with anyio.create_task_group() as tasks:
        yield Rig(backends=backends, service=service, ledger=ledger, tasks=tasks)
        tasks.cancel_scope.cancel()
    assert service.open_sessions == 0
    assert all(entry.reason is not None for entry in ledger.entries)


@asynccontextmanager
async def gguf_backends() -> AsyncIterator[list[GgufBackend]]:
    """Three workers with the fake engine."""
    async with backends_of([spec(layers, recipe=RECIPE) for layers in pairwise(CUTS)]) as backends:
        yield backends


@asynccontextmanager
async def backends_of(specs: Sequence[ShardSpec]) -> AsyncIterator[list[GgufBackend]]:
    """A worker for each."""
    async with AsyncExitStack() as stack:
        supervisors = [Supervisor(spec, settings=SETTINGS) for spec in specs]
        for supervisor in supervisors:
            await stack.enter_async_context(supervisor)
        yield [GgufBackend(supervisor) for supervisor in supervisors]


@asynccontextmanager
async def toy_backends() -> AsyncIterator[list[ToyBackend]]:
    """Three adders."""
    yield [ToyBackend(0, 1), ToyBackend(1, 2), ToyBackend(2, 3)]


@asynccontextmanager
async def node(kind: str, **options: Any) -> AsyncIterator[Rig]:
    """A node with the three stages of a model, `gguf` or `toy`."""
    async with (
        _BACKENDS[kind]() as backends,
        rig_of(backends, **options) as rig,
    ):
        yield rig


_BACKENDS: dict[str, Callable[[], AbstractAsyncContextManager[Sequence[ModelBackend]]]] = {
    "gguf": gguf_backends,
    "toy": toy_backends,
}


async def through(sessions: Sequence[StageSession], tokens: Sequence[int], output: Output) -> Result:
    """Rows through all stages, in one piece."""
    hidden: Buffer | None = None
    for session in sessions[:-1]:
        given = tokens if hidden is None else None
        hidden = (await session.forward_piece(tokens=given, hidden=hidden, output=Output.HIDDEN)).hidden
    return await sessions[-1].forward_piece(tokens=tokens, hidden=hidden, output=output)
