"""Dials nodes over gRPC."""

from __future__ import annotations

import asyncio
import weakref
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import anyio
import grpc
import grpc.aio
from google.protobuf.message import Message

from gguf_worker.errors import GgufWorkerError
from gguf_worker.node import versions
from gguf_worker.node.grpc.doorkeeper import AUTHORIZATION
from gguf_worker.node.grpc.limits import channel_arguments
from gguf_worker.node.grpc.security import (
    GrpcClientOptions,
    SecurityError,
    channel_credentials,
    check_token_stays_secret,
)
from gguf_worker.node.grpc.statuses import Status, refused, request_error, transport_closed, unreachable
from gguf_worker.node.grpc.stream import TAKEN_KEY, GrpcStream
from gguf_worker.node.grpc.tokens import SCHEME
from gguf_worker.node.transport import TransportClosed
from gguf_worker.serving.address import Address, AddressError
from gguf_worker_v1 import node_pb2, registration_pb2, stage_pb2

SERVICE: Final = "/gguf_worker.v1.Node/"
STATUS_S: Final = 5.0
"""How long the status of a stream that is over may take to arrive."""

_Answer = TypeVar("_Answer", bound=Message)
_StreamCall = grpc.aio.StreamStreamCall[bytes, bytes]


@dataclass(eq=False, slots=True)
class _Line:
    """A channel to one address, and how many streams and calls use it."""

    address: str
    channel: grpc.aio.Channel
    users: int = 0
    idle: asyncio.TimerHandle | None = None


class GrpcDialer:
    """Opens streams to nodes, all of them with TLS or all of them without. Streams to one address share a
    connection, which is closed when nobody has used it for `limits.idle_s`. An async context manager: leaving
    it ends everything."""

    def __init__(self, options: GrpcClientOptions | None = None) -> None:
        """Raises CertificateError and SecurityError."""
        self._options = options or GrpcClientOptions()
        tls, token = self._options.tls, self._options.token
        self._credentials = None if tls is None else channel_credentials(tls)
        self._arguments = channel_arguments(self._options.limits, "" if tls is None else tls.server_name)
        self._metadata = ((AUTHORIZATION, SCHEME + token),) if token else ()
        self._lines: dict[str, _Line] = {}
        self._streams: weakref.WeakSet[_ClientStream] = weakref.WeakSet()
        self._closing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            for stream in list(self._streams):
                await stream.aclose()
            for line in list(self._lines.values()):
                self._close(line)
            while self._closing:
                await asyncio.wait(self._closing)

    # ---- streams and calls ----

    async def connect(self, address: str, *, timeout_s: float) -> GrpcStream:
        """See Dialer. Returns when the node has taken the stream."""
        line = self._line(address)
        call: _StreamCall = line.channel.stream_stream(SERVICE + "Stage")(metadata=self._metadata)
        self._hold(line, call)
        try:
            with anyio.fail_after(timeout_s):
                taken = TAKEN_KEY in (await call.initial_metadata() or ())
            if not taken:
                raise await self._refusal(line, call)
        except BaseException as error:
            call.cancel()
            if not isinstance(error, TimeoutError):
                raise
            self._forget(line)
            raise unreachable(address, f"no answer within {timeout_s:g} s") from None
        stream = _ClientStream(call, address, self._options.limits.max_frame_bytes)
        self._streams.add(stream)
        return stream

    async def describe(
        self, address: str, *, timeout_s: float | None = None
    ) -> registration_pb2.Registration:
        """What the node serves. Raises as `connect` does, and RequestError."""
        request = node_pb2.DescribeRequest(version=versions.version())
        answer = await self._call(address, "Describe", request, node_pb2.DescribeResponse, timeout_s)
        return answer.registration

    async def tokenize(
        self, address: str, request: node_pb2.TokenizeRequest, *, timeout_s: float | None = None
    ) -> stage_pb2.Tokenized:
        """See TokenizeRequest. Raises as `describe` does."""
        return await self._call(address, "Tokenize", request, stage_pb2.Tokenized, timeout_s)

    async def detokenize(
        self, address: str, request: node_pb2.DetokenizeRequest, *, timeout_s: float | None = None
    ) -> stage_pb2.Detokenized:
        """See DetokenizeRequest. Raises as `describe` does."""
        return await self._call(address, "Detokenize", request, stage_pb2.Detokenized, timeout_s)

    async def _call(
        self, address: str, method: str, request: Message, answer: type[_Answer], timeout_s: float | None
    ) -> _Answer:
        line = self._line(address)
        unary: grpc.aio.UnaryUnaryMultiCallable[Message, _Answer] = line.channel.unary_unary(
            SERVICE + method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        limit_s = self._options.limits.call_timeout_s if timeout_s is None else timeout_s
        call = unary(request, timeout=limit_s, metadata=self._metadata)
        self._hold(line, call)
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            told = request_error(
                Status(error.code(), error.details() or "", tuple(error.trailing_metadata() or ()), address)
            )
            raise (self._lost(line, told) if isinstance(told, TransportClosed) else told) from error

    async def _refusal(self, line: _Line, call: _StreamCall) -> TransportClosed:
        return self._lost(line, refused(await _status(call, line.address)))

    def _lost(self, line: _Line, error: TransportClosed) -> TransportClosed:
        if error.code == "unreachable":
            self._forget(line)
        return error

    # ---- connections ----

    def _line(self, address: str) -> _Line:
        """The channel to an address; a new one where there is none."""
        if (line := self._lines.get(address)) is None:
            try:
                check_token_stays_secret(Address.parse(address), self._options)
            except AddressError as error:
                raise unreachable(address, error.message) from error
            except SecurityError as error:
                raise TransportClosed(error.message, code="unauthenticated", fields=error.fields) from error
            line = self._lines[address] = _Line(address, self._channel(address))
        return line

    def _channel(self, address: str) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(address, self._arguments)
        return grpc.aio.secure_channel(address, self._credentials, self._arguments)

    def _hold(self, line: _Line, call: grpc.aio.Call) -> None:
        """Keeps the channel for as long as the call is not done."""
        line.users += 1
        if line.idle is not None:
            line.idle.cancel()
            line.idle = None
        call.add_done_callback(lambda _: self._release(line))

    def _release(self, line: _Line) -> None:
        line.users -= 1
        if line.users:
            return
        if self._lines.get(line.address) is line:
            loop = asyncio.get_running_loop()
            line.idle = loop.call_later(self._options.limits.idle_s, self._close, line)
        else:
            self._close(line)

    def _forget(self, line: _Line) -> None:
        """The next one to dial starts anew, without the pause that gRPC makes after a failure."""
        if self._lines.get(line.address) is line:
            del self._lines[line.address]

    def _close(self, line: _Line) -> None:
        self._forget(line)
        if line.idle is not None:
            line.idle.cancel()
        task = asyncio.get_running_loop().create_task(line.channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class _ClientStream(GrpcStream):
    """A stream as the client has it."""

    def __init__(self, call: _StreamCall, address: str, max_frame_bytes: int) -> None:
        super().__init__(peer=address, max_frame_bytes=max_frame_bytes)
        self._call = call

    async def aclose(self, error: GgufWorkerError | None = None) -> None:  # noqa: ARG002
        """See Transport. gRPC has no way to tell a server why: the frames before this did."""
        self.lose(TransportClosed(f"{self.peer}: the stream was closed on this side", code="closed"))
        self._call.cancel()

    async def _read(self) -> bytes | None:
        frame: Any = await self._call.read()
        return None if frame is grpc.aio.EOF else frame

    async def _write(self, frame: bytes) -> None:
        await self._call.write(frame)

    async def _why(self) -> TransportClosed:
        return transport_closed(await _status(self._call, self.peer))


async def _status(call: _StreamCall, peer: str) -> Status:
    """How a stream that is over ended."""
    with anyio.move_on_after(STATUS_S):
        return Status(
            await call.code(), await call.details() or "", tuple(await call.trailing_metadata() or ()), peer
        )
    return Status(grpc.StatusCode.UNAVAILABLE, "it ended without a status", (), peer)
