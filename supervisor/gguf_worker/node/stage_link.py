"""The client's end of one stream: requests with numbers, each answered once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, NoReturn

import anyio
from google.protobuf.message import Message

from gguf_worker._schema import Buffer
from gguf_worker.errors import GgufWorkerError, RemoteProtocolError, RequestTimeout
from gguf_worker.node import frames, versions
from gguf_worker.node.remote_errors import error_of, loss
from gguf_worker.node.transport import Transport, TransportClosed
from gguf_worker.protocol.limits import DEFAULT_MAX_FRAME_BYTES
from gguf_worker_v1 import stage_pb2

FINISH_S: Final = 1.0
"""How long a frame that is being sent may take when its sender is cancelled."""

REASON_S: Final = 1.0
"""How long a stream that broke is listened to for the reason."""


_ANSWERS: Final = {
    "open": "opened",
    "forward": "result",
    "trim": "trimmed",
    "cancel": "cancelled",
    "close": "closed",
    "tokenize": "tokenized",
    "detokenize": "detokenized",
    "get_chat_template": "chat_template",
}
"""What answers a request, where it is no error."""


@dataclass(slots=True, eq=False)
class Pending:
    """A request that was sent, and its answer once there is one."""

    number: int
    body: str
    answer: frames.Frame | None = None


class StageLink:
    """A stream that was begun. Whoever waits for an answer reads; where several wait, one of them reads for
    all. So there is no task behind it, and nothing to be left behind.

    Every call raises StageLost once the stream is gone.
    """

    def __init__(self, transport: Transport, *, node: str) -> None:
        self.node = node
        """Its name, for errors."""
        self.telemetry: stage_pb2.StageTelemetry | None = None
        """What the stage said at the end of the session."""
        self.max_frame_bytes = min(transport.max_frame_bytes, DEFAULT_MAX_FRAME_BYTES)
        """Largest frame that the stage takes; what is known of it before its hello."""
        self._transport = transport
        self._last_number = 0
        self._pending: dict[int, Pending] = {}
        self._loss: GgufWorkerError | None = None
        self._is_greeted = False
        """Whether the stage's hello came."""
        self._is_reading = False
        self._turn: anyio.Event | None = None
        """There where somebody waits for another task's reading."""
        self._sending = anyio.Lock(fast_acquire=True)

    async def greet(self) -> None:
        """Sends our hello, and does not wait for theirs: it comes before the first answer."""
        hello = stage_pb2.Hello(
            version=versions.version(), software=versions.SOFTWARE, max_frame_bytes=DEFAULT_MAX_FRAME_BYTES
        )
        await self._send(stage_pb2.StageFrame(hello=hello))

    async def request(
        self, body: str, message: Message, timeout_s: float, field: str = "", rows: Buffer | None = None
    ) -> frames.Frame:
        """The answer. Raises what `remote_errors.error_of` makes of an error, and RequestTimeout. After that,
        or where the task is cancelled, the request is still on its way, and its answer is dropped."""
        with anyio.move_on_after(timeout_s):
            return await self.answer(await self.post(body, message, field, rows))
        raise RequestTimeout(
            f"node {self.node} did not answer {body!r} within {timeout_s:g} s",
            fields={"node": self.node, "type": body, "timeout_s": f"{timeout_s:g}"},
        )

    async def post(self, body: str, message: Message, field: str = "", rows: Buffer | None = None) -> Pending:
        """Sends a request, whose `answer` may be waited for."""
        async with self._sending:
            number = self._last_number + 1
            frame = stage_pb2.StageFrame(request=number)
            getattr(frame, body).CopyFrom(message)
            raw = frames.encode(frame, field, rows)
            if len(raw) > self.max_frame_bytes:
                raise _too_large(body, len(raw), self.max_frame_bytes)
            self._last_number = number
            self._pending[number] = pending = Pending(number, body)
            try:
                await self._send_raw(raw)
            except BaseException:
                self._pending.pop(number, None)
                raise
        return pending

    async def tell(self, body: str, message: Message) -> None:
        """Sends a request whose answer nobody waits for."""
        self._pending.pop((await self.post(body, message)).number, None)

    async def answer(self, pending: Pending) -> frames.Frame:
        """Waits for the answer of a request that was posted."""
        try:
            while pending.answer is None:
                self._check()
                await self._progress()
        finally:
            self._pending.pop(pending.number, None)
        if pending.answer.message.HasField("error"):
            raise error_of(pending.answer.message.error, self.node)
        return pending.answer

    def refuse(self, error: RemoteProtocolError) -> NoReturn:
        """Takes the stream for lost because of an answer that cannot be."""
        self._lose(error)
        raise loss(error, self.node) from error

    async def aclose(self) -> None:
        """Ends the stream in any state."""
        self._lose(TransportClosed("this side ended the stream", code="closed"))
        await self._transport.aclose()

    # ---- in ----

    async def _progress(self) -> None:
        """Reads one frame, or waits until another task has read one."""
        if self._is_reading:
            self._turn = self._turn or anyio.Event()
            await self._turn.wait()
            return
        self._is_reading = True
        try:
            self._take(await self._transport.receive())
        except (TransportClosed, RemoteProtocolError) as error:
            self._lose(error)
        finally:
            self._is_reading = False
            self._wake()

    def _take(self, raw: bytes) -> None:
        read = frames.decode(raw)
        frame = read.message
        match frame.WhichOneof("body"):
            case "hello":
                self._take_hello(frame.hello)
            case "telemetry":
                self.telemetry = frame.telemetry
            case "error" if frame.request == 0:
                self._lose(error_of(frame.error, self.node, ends_stream=True))
            case None:
                """Of a newer version."""
            case body if not self._is_greeted:
                raise RemoteProtocolError(f"the stage began its stream with {body!r} and not with hello")
            case body:
                self._take_answer(body, read)

    def _take_answer(self, body: str, read: frames.Frame) -> None:
        pending = self._pending.get(read.message.request)
        if pending is None:
            return  # nobody waits for it any more
        if body not in ("error", _ANSWERS[pending.body]):
            raise RemoteProtocolError(f"the stage answered {pending.body!r} with {body!r}")
        pending.answer = pending.answer or read

    def _take_hello(self, hello: stage_pb2.Hello) -> None:
        self._is_greeted = True
        try:
            versions.check(hello.version)
        except versions.VersionRefused as error:
            self._lose(TransportClosed(error.message, code=error.code, fields=error.fields))
            return
        if hello.max_frame_bytes:
            self.max_frame_bytes = min(self._transport.max_frame_bytes, hello.max_frame_bytes)

    # ---- out ----

    async def _send(self, frame: stage_pb2.StageFrame) -> None:
        async with self._sending:
            await self._send_raw(frames.encode(frame))

    async def _send_raw(self, raw: bytes) -> None:
        self._check()
        # A task of its own, because half a frame cannot be taken back: where ours is cancelled it may finish.
        sending = asyncio.ensure_future(self._transport.send(raw))
        try:
            await asyncio.shield(sending)
        except TransportClosed as error:
            await self._hear_why()
            self._lose(error)
            self._check()
        except asyncio.CancelledError:
            await self._let_finish(sending)
            raise

    async def _let_finish(self, sending: asyncio.Future[None]) -> None:
        """What follows a frame of which nobody knows how much was sent could not be understood."""
        with anyio.CancelScope(shield=True):
            await asyncio.wait((sending,), timeout=FINISH_S)
            if sending.cancel():
                await asyncio.wait((sending,))
        if sending.cancelled() or sending.exception() is not None:
            self._lose(TransportClosed("the sending of a frame was interrupted"))

    async def _hear_why(self) -> None:
        """Where a stream ends, the peer's reason may have come already and wait to be read."""
        with anyio.move_on_after(REASON_S):
            while self._loss is None:
                await self._progress()

    # ---- the end ----

    def _check(self) -> None:
        if self._loss is not None:
            raise self._loss.with_traceback(None)

    def _lose(self, error: GgufWorkerError) -> None:
        """The first reason stands."""
        self._loss = self._loss or loss(error, self.node)
        self._wake()

    def _wake(self) -> None:
        if self._turn is not None:
            self._turn.set()
            self._turn = None


def _too_large(body: str, n_bytes: int, limit: int) -> TransportClosed:
    return TransportClosed(
        f"the {body} takes {n_bytes} bytes, and the node {limit}; send fewer rows at once",
        code="too_large",
        fields={"expected": str(limit), "actual": str(n_bytes)},
    )
