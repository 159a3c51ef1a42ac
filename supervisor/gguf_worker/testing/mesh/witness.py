"""Sees every frame that a client sends to nodes and gets from them: what was asked, and what was answered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gguf_worker._schema import Buffer
from gguf_worker.errors import GgufWorkerError
from gguf_worker.node.transport import Dialer, Transport
from gguf_worker_v1 import stage_pb2


@dataclass(slots=True)
class Seen:
    """Rows of one work on one node."""

    asked: int = 0
    """In forwards that were handed over; each may have been computed or not."""
    answered: int = 0
    """In results: these were computed for certain."""
    forwards: int = 0


Moment = Callable[[str, Seen], Awaitable[None]]


async def nothing(_: str, __: Seen) -> None:
    """Lets every forward pass."""


class Witness:
    """The truth of a client, by work and node. `on_forward` is called with the node and what was seen of the
    work there when a forward has gone to it: while it is on its way or being computed."""

    def __init__(self, row_bytes: int) -> None:
        self.row_bytes = row_bytes
        self.works: dict[tuple[str, str], Seen] = defaultdict(Seen)
        self.on_forward: Moment = nothing

    def dialer(self, dialer: Dialer) -> Dialer:
        """The same dialer, under its eyes."""
        return _SeenDialer(dialer, self)


class _SeenDialer:
    def __init__(self, dialer: Dialer, witness: Witness) -> None:
        self._dialer = dialer
        self._witness = witness

    async def connect(self, address: str, *, timeout_s: float) -> Transport:
        return _SeenTransport(await self._dialer.connect(address, timeout_s=timeout_s), self._witness)


class _SeenTransport:
    def __init__(self, transport: Transport, witness: Witness) -> None:
        self._transport = transport
        self._witness = witness
        self._work = ""
        self._node = ""
        self._positions: dict[int, int] = {}
        """Of forwards that are not answered yet, by request."""

    @property
    def peer(self) -> str:
        return self._transport.peer

    @property
    def max_frame_bytes(self) -> int:
        return self._transport.max_frame_bytes

    async def send(self, frame: Buffer) -> None:
        asked = stage_pb2.StageFrame.FromString(bytes(frame))
        if asked.HasField("open"):
            self._work = asked.open.work_id
        if asked.HasField("forward"):
            self._seen.forwards += 1
            self._seen.asked += self._rows(asked.forward)
            self._positions[asked.request] = asked.forward.position
        await self._transport.send(frame)
        if asked.HasField("forward"):
            await self._witness.on_forward(self._node, self._seen)

    async def receive(self) -> bytes:
        data = await self._transport.receive()
        answer = stage_pb2.StageFrame.FromString(data)
        if answer.HasField("hello"):
            self._node = answer.hello.node
        if answer.HasField("result"):
            self._seen.answered += answer.result.length - self._positions.pop(answer.request)
        return data

    async def aclose(self, error: GgufWorkerError | None = None) -> None:
        await self._transport.aclose(error)

    @property
    def _seen(self) -> Seen:
        return self._witness.works[self._work, self._node]

    def _rows(self, forward: stage_pb2.Forward) -> int:
        if forward.HasField("hidden"):
            return len(forward.hidden) // self._witness.row_bytes
        return len(forward.tokens)
