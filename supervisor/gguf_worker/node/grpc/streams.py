"""The streams that a node has open."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, Final, Protocol

import grpc.aio

from gguf_worker.errors import GgufWorkerError, RequestError
from gguf_worker.node.grpc.calls import TextService
from gguf_worker.node.grpc.doorkeeper import Doorkeeper, refuse
from gguf_worker.node.grpc.limits import GrpcLimits
from gguf_worker.node.grpc.statuses import abort
from gguf_worker.node.grpc.stream import BROKEN, TAKEN_KEY, GrpcStream
from gguf_worker.node.transport import Transport, TransportClosed

log = logging.getLogger(__name__)

END_S: Final = 2.0
"""How long a stream that was told to end may take."""


class StreamService(Protocol):
    """What serves streams; `StageService` is one."""

    @property
    def text(self) -> TextService:
        """What serves the calls about text."""

    async def serve(self, transport: Transport, *, account: str = "") -> None:
        """Runs one stream to its end."""


class Streams:
    """Hands them to the service, and ends them."""

    def __init__(self, service: StreamService, doorkeeper: Doorkeeper, limits: GrpcLimits) -> None:
        self._service = service
        self._doorkeeper = doorkeeper
        self._limits = limits
        self._open: dict[ServerStream, asyncio.Task[None]] = {}
        self._is_draining = False

    @property
    def count(self) -> int:
        return len(self._open)

    def drain(self) -> None:
        self._is_draining = True

    async def handle(self, _: Any, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        """One call of Stage."""
        account = self._doorkeeper.account(context.invocation_metadata())
        if account is None:  # the tokens changed a moment ago
            await refuse(None, context)
            return
        if refusal := self._refusal():
            await abort(context, refusal)
        stream = ServerStream(context, self._limits.max_frame_bytes)
        task = asyncio.create_task(self._serve(stream, account))
        self._open[stream] = task  # before anything is awaited: the limit counts it, and `finish` ends it
        try:
            await _until_done(task, stream)
        finally:
            del self._open[stream]
            stream.lose(TransportClosed(f"{stream.peer}: the stream is over", code="closed"))
        if stream.error is not None:
            await abort(context, stream.error)

    async def finish(self, grace_s: float) -> None:
        """Waits for the streams to end; those that do not are ended, and reported with `draining`."""
        if self._open:
            await asyncio.wait(self._open.values(), timeout=grace_s)
        for stream in self._open:
            stream.error = _stopping()
            stream.lose(TransportClosed(f"{stream.peer}: this node is stopping"))
        if self._open:
            await asyncio.wait(self._open.values(), timeout=END_S)
        for task in self._open.values():
            task.cancel()

    async def _serve(self, stream: ServerStream, account: str) -> None:
        try:
            await stream.take()
        except TransportClosed:
            return
        await self._service.serve(stream, account=account)

    def _refusal(self) -> GgufWorkerError | None:
        if self._is_draining:
            return _stopping()
        if len(self._open) >= self._limits.max_streams:
            return RequestError(
                f"this node has {len(self._open)} open streams, its limit: try again later or elsewhere",
                code="busy",
                retryable=True,
            )
        return None


class ServerStream(GrpcStream):
    """A stream as the node has it."""

    def __init__(self, context: grpc.aio.ServicerContext[bytes, bytes], max_frame_bytes: int) -> None:
        super().__init__(peer=context.peer(), max_frame_bytes=max_frame_bytes)
        self._context = context
        self.error: GgufWorkerError | None = None
        """What the stream ends with; None is a good end."""

    async def take(self) -> None:
        """Tells the client, which waits for it, that it has a stream. Raises TransportClosed."""
        try:
            await self._context.send_initial_metadata(((TAKEN_KEY, "stage"),))
        except BROKEN as error:
            raise _client_gone(self.peer) from error

    async def aclose(self, error: GgufWorkerError | None = None) -> None:
        """See Transport. The peer is told when the service is done with the stream."""
        if not isinstance(error, TransportClosed):  # which says what the peer did
            self.error = self.error or error
        self.lose(TransportClosed(f"{self.peer}: the stream was closed on this side", code="closed"))

    async def _read(self) -> bytes | None:
        frame: Any = await self._context.read()
        return None if frame is grpc.aio.EOF else frame

    async def _write(self, frame: bytes) -> None:
        await self._context.write(frame)

    async def _why(self) -> TransportClosed:
        return _client_gone(self.peer)


async def _until_done(task: asyncio.Task[None], stream: ServerStream) -> None:
    """Waits for the service to be done with the stream. gRPC cancels this where the client is gone: the
    service then sees a lost stream, and ends in its own way."""
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            stream.lose(_client_gone(stream.peer))
    with suppress(asyncio.CancelledError):
        if (error := task.exception()) is not None:
            log.error("a stream ended with a defect", exc_info=error)
            stream.error = RequestError(f"a defect of this node: {type(error).__name__}", code="internal")


def _client_gone(peer: str) -> TransportClosed:
    return TransportClosed(f"{peer}: the client has ended the stream, or is gone", code="closed")


def _stopping() -> GgufWorkerError:
    return RequestError(
        "this node is stopping and takes no more streams: use another one", code="draining", retryable=True
    )
