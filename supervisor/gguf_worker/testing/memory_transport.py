"""A stream of frames between two tasks, with faults on purpose: `node.transport` without any network.

link = MemoryLink()
link.up.alter = lose(2)                      # the third frame of the client never arrives
tasks.start_soon(service.serve, link.server)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import anyio

from gguf_worker._schema import Buffer
from gguf_worker.errors import GgufWorkerError
from gguf_worker.node.transport import TransportClosed
from gguf_worker.protocol.limits import DEFAULT_MAX_FRAME_BYTES

Alter: TypeAlias = Callable[[int, bytes], Sequence[bytes]]
"""What becomes of a frame with this number, from 0 in each direction: the frames that arrive in its place."""


def lose(number: int) -> Alter:
    """One frame never arrives."""
    return lambda index, frame: () if index == number else (frame,)


def repeat(number: int) -> Alter:
    """One frame arrives twice."""
    return lambda index, frame: (frame, frame) if index == number else (frame,)


def swap(number: int) -> Alter:
    """One frame arrives after the one behind it."""
    kept: list[bytes] = []

    def alter(index: int, frame: bytes) -> Sequence[bytes]:
        if index == number:
            kept.append(frame)
            return ()
        return (frame, kept.pop()) if kept else (frame,)

    return alter


class Wire:
    """One direction of a link. A sender waits while `max_frames` of its frames have not been received."""

    def __init__(self, *, max_frames: int) -> None:
        self.alter: Alter | None = None
        """A fault; may be exchanged at any time."""
        self.sent = 0
        """Frames that were handed over."""
        self._max_frames = max_frames
        self._frames: deque[bytes] = deque()
        self._end: TransportClosed | None = None
        self._is_held = False
        self._is_stalled = False
        self._changed = anyio.Event()

    @property
    def waiting(self) -> int:
        """Frames that are on their way."""
        return len(self._frames)

    def hold(self) -> None:
        """From here on nothing arrives."""
        self._is_held = True

    def release(self) -> None:
        """All that was held arrives."""
        self._is_held = False
        self._wake()

    def stall(self) -> None:
        """From here on senders wait."""
        self._is_stalled = True

    def resume(self) -> None:
        """They go on."""
        self._is_stalled = False
        self._wake()

    def end(self, error: TransportClosed) -> None:
        """Nothing more is taken; what is on its way arrives before the end does."""
        self._end = self._end or error
        self._wake()

    def lose_everything(self) -> None:
        """What is on its way does not arrive."""
        self._frames.clear()

    async def put(self, frame: bytes) -> None:
        while self._end is None and (self._is_stalled or len(self._frames) >= self._max_frames):
            await self._changed.wait()
        if self._end is not None:
            raise _again(self._end)
        self._frames.extend((frame,) if self.alter is None else self.alter(self.sent, frame))
        self.sent += 1
        self._wake()

    async def get(self) -> bytes:
        while self._is_held or not self._frames:
            if self._end is not None and not self._is_held:
                raise _again(self._end)
            await self._changed.wait()
        frame = self._frames.popleft()
        self._wake()
        return frame

    async def wait_for_sent(self, count: int) -> None:
        """Returns when so many frames were handed over."""
        while self.sent < count:
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class MemoryTransport:
    """One end of a link."""

    def __init__(self, outgoing: Wire, incoming: Wire, *, peer: str, max_frame_bytes: int) -> None:
        self.closed_with: GgufWorkerError | None = None
        """What its own side ended it with."""
        self.is_closed = False
        self._outgoing = outgoing
        self._incoming = incoming
        self._peer = peer
        self._max_frame_bytes = max_frame_bytes

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def max_frame_bytes(self) -> int:
        return self._max_frame_bytes

    async def send(self, frame: Buffer) -> None:
        if len(frame) > self._max_frame_bytes:
            raise TransportClosed(
                f"a frame of {len(frame)} bytes, where {self._max_frame_bytes} go", code="too_large"
            )
        await self._outgoing.put(bytes(frame))

    async def receive(self) -> bytes:
        return await self._incoming.get()

    async def aclose(self, error: GgufWorkerError | None = None) -> None:
        if self.is_closed:
            return
        self.is_closed, self.closed_with = True, error
        code = error.code if error is not None else "closed"
        self._outgoing.end(TransportClosed(f"the peer closed the stream ({code})", code="closed"))
        self._incoming.end(TransportClosed("this side closed the stream", code="closed"))


class MemoryLink:
    """Both ends of a stream of frames, and the wires between them."""

    def __init__(
        self, *, max_frames: int = 8, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES, name: str = "memory"
    ) -> None:
        self.up = Wire(max_frames=max_frames)
        """From the client to the stage."""
        self.down = Wire(max_frames=max_frames)
        """From the stage to the client."""
        self.client = MemoryTransport(self.up, self.down, peer=name, max_frame_bytes=max_frame_bytes)
        self.server = MemoryTransport(self.down, self.up, peer=name, max_frame_bytes=max_frame_bytes)

    def cut(self, code: str = "lost") -> None:
        """Something on the way breaks: both ends are told, and what is on its way is lost."""
        for wire in (self.up, self.down):
            wire.lose_everything()
            wire.end(TransportClosed("the stream was cut", code=code, retryable=True))
            wire.release()


def _again(error: TransportClosed) -> TransportClosed:
    return TransportClosed(error.message, code=error.code, retryable=error.retryable, fields=error.fields)
