"""A gRPC stream of raw bytes as a Transport, for either end."""

from __future__ import annotations

import asyncio
from typing import Final

import grpc
import grpc.aio

from gguf_worker._schema import Buffer
from gguf_worker.errors import GgufWorkerError
from gguf_worker.node.grpc.statuses import too_large
from gguf_worker.node.transport import TransportClosed

TAKEN_KEY: Final = "gguf-worker-taken"
"""Initial metadata of a stream that the node serves. A refusal has none, and its status may come later."""

BROKEN = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
"""What gRPC raises for a read or a write on a stream that is over."""


class GrpcStream:
    """One end of a stream.

    gRPC ends a whole stream where a task that reads it is cancelled, so a task of the stream reads, one frame
    ahead of `receive`. What is not received fills HTTP/2's window, and holds the peer up. A `send` that is
    cancelled ends the stream.
    """

    def __init__(self, *, peer: str, max_frame_bytes: int) -> None:
        self.peer = peer
        self.max_frame_bytes = max_frame_bytes
        self._loop = asyncio.get_running_loop()
        self._end: TransportClosed | None = None
        self._frame: bytes | None = None
        """Read, and not received yet."""
        self._arrival: asyncio.Future[None] | None = None
        """Whoever receives waits for it."""
        self._room: asyncio.Future[None] | None = None
        """The reading task waits for it."""
        self._reading = self._loop.create_task(self._read_all())

    async def send(self, frame: Buffer) -> None:
        """See Transport."""
        size = memoryview(frame).nbytes
        if size > self.max_frame_bytes:
            raise too_large(self.peer, f"{size} bytes, of at most {self.max_frame_bytes}")
        if self._end is not None:
            raise self._end.with_traceback(None)
        try:
            await self._write(frame if isinstance(frame, bytes) else bytes(frame))
        except BROKEN as error:
            raise await self._why() from error  # what came before the end may still be received
        except asyncio.CancelledError:
            if self._end is None or _is_cancelled():
                raise
            raise self._end.with_traceback(None) from None

    async def receive(self) -> bytes:
        """See Transport."""
        while self._frame is None:
            if self._end is not None:
                raise self._end.with_traceback(None)
            self._arrival = self._loop.create_future()
            await self._arrival
        frame, self._frame = self._frame, None
        _wake(self._room)
        return frame

    def lose(self, error: TransportClosed) -> None:
        """Whoever sends or receives gets this error from now on, unless there was one before."""
        self._frame = None
        self._end_with(error)
        self._reading.cancel()

    # ---- what differs between the ends ----

    async def aclose(self, error: GgufWorkerError | None = None) -> None:
        """See Transport."""
        raise NotImplementedError

    async def _read(self) -> bytes | None:
        """The next frame; None at the end."""
        raise NotImplementedError

    async def _write(self, frame: bytes) -> None:
        raise NotImplementedError

    async def _why(self) -> TransportClosed:
        """Why there is nothing more."""
        raise NotImplementedError

    # ---- the task that reads ----

    async def _read_all(self) -> None:
        try:
            while (frame := await self._read()) is not None:
                self._frame = frame
                self._room = self._loop.create_future()
                _wake(self._arrival)
                await self._room
        except BROKEN:
            pass  # the status says why
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
        self._end_with(await self._why())

    def _end_with(self, error: TransportClosed) -> None:
        self._end = self._end or error
        _wake(self._arrival)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


def _is_cancelled() -> bool:
    """Whether somebody wants this task to end: gRPC raises the same where only its call was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
