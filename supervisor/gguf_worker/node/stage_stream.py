"""The stage's end of one stream: reads requests, answers them in order, and ends what is left at the end."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final, Protocol

import anyio
from anyio.abc import TaskGroup
from google.protobuf.message import Message

from gguf_worker._schema import Buffer
from gguf_worker._tasks import plain_task_group
from gguf_worker.errors import GgufWorkerError, RemoteProtocolError, RequestError, RequestTimeout
from gguf_worker.logs import bound, log_event
from gguf_worker.node import codec, frames, versions
from gguf_worker.node.clock import Clock
from gguf_worker.node.node_session import NodeSession
from gguf_worker.node.request_queue import ByteBudget, Cancelling, Request, RequestQueue
from gguf_worker.node.text_service import TextService
from gguf_worker.node.transport import Transport, TransportClosed
from gguf_worker.protocol.limits import DEFAULT_MAX_FRAME_BYTES
from gguf_worker.protocol.messages import Result
from gguf_worker.telemetry import StageSpan, stage_span
from gguf_worker_v1 import stage_pb2

log = logging.getLogger(__name__)

FRAME_OVERHEAD_BYTES: Final = 64
"""More than a frame takes beside its body: numbers, tags and lengths."""

FINISH_REASONS: Final = ("", "stop", "length", "cancelled", "deadline", "error")
"""What a close may say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """Limits of one stream; times in seconds."""

    hello_timeout_s: float = 10.0
    """For the client's hello."""
    idle_timeout_s: float = 60.0
    """How long a stream may stand without a session, and ask for nothing."""
    farewell_s: float = 1.0
    """How long the end of a stream may take to tell the peer why."""
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    """Largest frame that is read."""
    queue_frames: int = 64
    """Requests that were read and wait for their turn; no more is read then, not even a cancel."""
    queue_bytes: int = 2 * DEFAULT_MAX_FRAME_BYTES
    """The same in bytes; one request may have more."""


class Opener(Protocol):
    """What a stream asks of its service."""

    text: TextService

    async def open(self, request: stage_pb2.Open, *, account: str, deadline: float | None) -> NodeSession:
        """A session, which the stream ends."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One frame that answers a request."""

    body: str
    message: Message
    field: str = ""
    """Where `rows` go."""
    rows: Buffer | None = None


class _OpenRefused(Exception):
    """The stream has told its client why, and ends."""

    def __init__(self, error: GgufWorkerError, wanted: stage_pb2.Open) -> None:
        super().__init__(error.message)
        self.error = error
        self.wanted = wanted


class StageStream:
    """One stream. Two tasks: one reads, and hears of a cancel while the other computes and answers; only the
    second one sends, once the stream is under way."""

    def __init__(
        self,
        service: Opener,
        transport: Transport,
        *,
        node: str,
        account: str,
        settings: StreamSettings,
        clock: Clock,
        budget: ByteBudget,
    ) -> None:
        self._service = service
        self._transport = transport
        self._node = node
        self._account = account
        self._settings = settings
        self._clock = clock
        self._queue = RequestQueue(
            max_frames=settings.queue_frames, max_bytes=settings.queue_bytes, budget=budget
        )
        self._last_number = 0
        self._peer_takes_bytes = transport.max_frame_bytes
        self._session: NodeSession | None = None
        self._computing: anyio.CancelScope | None = None
        self._expiry = anyio.CancelScope()
        """Of the task that waits for the deadline."""
        self._began = self._used_at = clock.now()
        self._was_told_why = False
        """Whether the client knows why the stream ends."""
        self._until_end = ExitStack()
        self._span: StageSpan | None = None
        self._tasks: TaskGroup
        self._handlers: dict[str, Callable[[Request], Awaitable[list[Answer]]]] = {
            "open": self._open,
            "forward": self._forward,
            "trim": self._trim,
            "close": self._close,
            "tokenize": self._tokenize,
            "detokenize": self._detokenize,
            "get_chat_template": self._chat_template,
        }

    async def run(self) -> None:
        """The whole stream. Raises nothing but its own cancellation."""
        error: GgufWorkerError | None = None
        try:
            async with plain_task_group() as self._tasks:
                await self._greet()
                self._tasks.start_soon(self._execute, name="stage stream")
                self._tasks.start_soon(self._end_if_idle, name="idle stage stream")
                await self._read()
        except _OpenRefused as refused:
            error = refused.error
            self._log_refusal(refused)
            self._was_told_why = True
        except GgufWorkerError as ended:
            error = ended
        except Exception:
            log.exception("a stage stream failed")
            error = _internal()
        except BaseException:
            error = RequestError("the node is being stopped; ask another one", code="stopped", retryable=True)
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await self._finish(error)

    # ---- in ----

    async def _greet(self) -> None:
        """Our hello and theirs. Raises RemoteProtocolError and VersionRefused."""
        hello = stage_pb2.Hello(
            version=versions.version(),
            software=versions.SOFTWARE,
            node=self._node,
            max_frame_bytes=self._settings.max_frame_bytes,
        )
        with anyio.move_on_after(self._settings.hello_timeout_s) as scope:
            await self._send(0, Answer("hello", hello))
            frame = frames.decode(await self._receive()).message
        if scope.cancelled_caught:
            timeout_s = self._settings.hello_timeout_s
            raise RequestTimeout(f"the client sent no hello within {timeout_s:g} s")
        if frame.WhichOneof("body") != "hello":
            raise RemoteProtocolError("a stream begins with hello")
        versions.check(frame.hello.version)
        if frame.hello.max_frame_bytes:
            self._peer_takes_bytes = min(self._peer_takes_bytes, frame.hello.max_frame_bytes)

    async def _read(self) -> None:
        """Reads until the transport ends, which TransportClosed says."""
        while True:
            raw = await self._receive()
            read = frames.decode(raw)
            frame = read.message
            request = Request(frame=frame, rows=read.rows, n_bytes=len(raw), arrived=self._clock.now())
            if not self._is_new(request):
                continue
            if frame.HasField("cancel"):
                await self._take_cancel(request)
                continue
            self._used_at = self._clock.now()
            await self._queue.put(request)

    async def _receive(self) -> bytes:
        raw = await self._transport.receive()
        if len(raw) > self._settings.max_frame_bytes:
            raise RemoteProtocolError(
                f"a frame of {len(raw)} bytes, where {self._settings.max_frame_bytes} are taken; "
                "send fewer rows at once",
                fields={"expected": str(self._settings.max_frame_bytes), "actual": str(len(raw))},
            )
        return raw

    def _is_new(self, request: Request) -> bool:
        """Raises RemoteProtocolError for what no client may send now; False for a duplicate."""
        body = request.frame.WhichOneof("body")
        if body == "hello":
            return False
        if body not in self._handlers and body != "cancel":
            raise RemoteProtocolError(
                f"frame {request.number} holds {body or 'nothing known'}, and no request"
            )
        if request.number == 0:
            raise RemoteProtocolError(f"{body!r} without a number; requests are numbered from 1")
        expected = self._last_number + 1
        if request.number > expected:
            raise RemoteProtocolError(
                f"request {request.number} where {expected} is due: something between was lost; "
                "begin another stream",
                code="sequence",
                fields={"expected": str(expected), "actual": str(request.number)},
            )
        self._last_number = max(self._last_number, request.number)
        return request.number == expected

    async def _take_cancel(self, request: Request) -> None:
        self._queue.cancel(request)
        if self._computing is not None:
            self._computing.cancel()
        if self._session is not None and not request.frame.cancel.keep_session:
            # Here as well, because the other task may be held up by a peer that does not read.
            await self._session.end(_reason_of(request.frame.cancel))
        await self._queue.has_room()

    def _expire_at(self, deadline: float | None) -> None:
        """Ends the stream then. Takes the place of the deadline of an open that was cancelled."""
        self._expiry.cancel()
        self._expiry = anyio.CancelScope()
        if deadline is not None:
            self._tasks.start_soon(self._expire, deadline, self._expiry)

    async def _expire(self, deadline: float, scope: anyio.CancelScope) -> None:
        with scope:
            await self._clock.sleep_until(deadline)
            if self._session is None or self._has_session:
                raise RequestTimeout(
                    "nobody waits for this session any more: its deadline has passed", code="deadline"
                )

    async def _end_if_idle(self) -> None:
        """Ends a stream that nobody uses: it takes one of those that the node has, for nothing."""
        while True:
            now = self._clock.now()
            if self._computing is not None or self._has_session:
                self._used_at = now
            due = self._used_at + self._settings.idle_timeout_s
            if due <= now:
                raise RequestTimeout(
                    f"a stream without a session asked for nothing in {self._settings.idle_timeout_s:g} s; "
                    "begin another one when there is something to ask",
                    code="idle",
                )
            await self._clock.sleep_until(due)

    @property
    def _has_session(self) -> bool:
        """Whether it is open."""
        return self._session is not None and self._session.end_reason is None

    # ---- out ----

    async def _execute(self) -> None:
        while True:
            item = await self._queue.get()
            if isinstance(item, Cancelling):
                await self._cancel(item)
            else:
                await self._answer(item)

    async def _answer(self, request: Request) -> None:
        refusal: GgufWorkerError | None = None
        answers: list[Answer] | None = None
        with anyio.CancelScope() as self._computing:
            try:
                answers = await self._compute(request)
            except GgufWorkerError as error:
                refusal, answers = error, [_error_answer(error)]
        self._computing = None
        self._used_at = self._clock.now()
        for answer in [_error_answer(_cancelled())] if answers is None else answers:
            await self._send(request.number, answer, arrived=request.arrived)
        if refusal is not None and request.frame.HasField("open") and self._session is None:
            raise _OpenRefused(refusal, request.frame.open)

    async def _compute(self, request: Request) -> list[Answer]:
        body = request.frame.WhichOneof("body")
        assert body is not None
        with bound(**self._ids()):
            return await self._handlers[body](request)

    async def _cancel(self, item: Cancelling) -> None:
        """Everything that waited is answered, and then the cancel itself."""
        number, cancel = item.request.number, item.request.frame.cancel
        for waiting in item.waiting:
            await self._send(waiting, _error_answer(_cancelled()))
        if cancel.keep_session:
            freed = await self._undo()
        else:
            freed = await self._session.end(_reason_of(cancel)) if self._session is not None else 0
            await self._send(number, self._telemetry())
        await self._send(number, Answer("cancelled", stage_pb2.Cancelled(kv_cells_freed=freed)))

    async def _undo(self) -> int:
        if self._session is None:
            return 0
        try:
            with bound(**self._ids()):
                return await self._session.undo()
        except GgufWorkerError:
            return 0  # it was ended instead, as the next request will hear

    async def _send(self, number: int, answer: Answer, *, arrived: float | None = None) -> None:
        if arrived is not None and isinstance(answer.message, stage_pb2.Result):
            node_us = round((self._clock.now() - arrived) * 1e6)
            answer.message.node_us = node_us
            if self._session is not None:
                self._session.telemetry.node_us += node_us
        raw = frames.encode(_frame(number, answer), answer.field, answer.rows)
        if len(raw) > self._peer_takes_bytes:
            error = _too_large(answer.body, len(raw), self._peer_takes_bytes)
            raw = frames.encode(_frame(number, _error_answer(error)))
        await self._transport.send(raw)

    # ---- one method for each request ----

    async def _open(self, request: Request) -> list[Answer]:
        if self._session is not None:
            raise RequestError(
                "this stream has had its session; begin another stream for another session",
                code="session_open",
            )
        wanted = request.frame.open
        deadline = request.arrived + wanted.deadline_ms / 1000 if wanted.deadline_ms else None
        self._expire_at(deadline)
        session = await self._service.open(wanted, account=self._account, deadline=deadline)
        self._session = session
        span = stage_span(session.work, layers=session.layers, node=self._node)
        self._span = self._until_end.enter_context(span)
        opened = stage_pb2.Opened(session=session.name, length=session.length, kv_cells=session.kv_cells)
        return [Answer("opened", opened)]

    async def _forward(self, request: Request) -> list[Answer]:
        forward = request.frame.forward
        output = codec.output_from_pb(forward.output)
        made: list[Answer] = []

        def check(result: Result) -> int:
            answer = Answer("result", *codec.result_to_pb(result))
            n_bytes = _size(answer)
            if n_bytes > self._peer_takes_bytes:
                raise _too_large("result", n_bytes, self._peer_takes_bytes)
            made.append(answer)
            return n_bytes

        await self._opened().forward(forward, request.rows, output, bytes_in=request.n_bytes, check=check)
        return made

    async def _trim(self, request: Request) -> list[Answer]:
        session = self._opened()
        freed = await session.trim(request.frame.trim.position)
        return [Answer("trimmed", stage_pb2.Trimmed(length=session.length, kv_cells_freed=freed))]

    async def _close(self, request: Request) -> list[Answer]:
        reason = request.frame.close.finish_reason
        if reason not in FINISH_REASONS:
            listed = ", ".join(filter(None, FINISH_REASONS))
            raise RequestError(f"finish reason {reason[:40]!r} is none of {listed}", code="argument")
        freed = await self._opened().close(reason)
        return [self._telemetry(), Answer("closed", stage_pb2.Closed(kv_cells_freed=freed))]

    async def _tokenize(self, request: Request) -> list[Answer]:
        return [Answer("tokenized", await self._service.text.tokenize(request.frame.tokenize))]

    async def _detokenize(self, request: Request) -> list[Answer]:
        return [Answer("detokenized", await self._service.text.detokenize(request.frame.detokenize))]

    async def _chat_template(self, request: Request) -> list[Answer]:
        template = await self._service.text.chat_template(request.frame.get_chat_template)
        return [Answer("chat_template", template)]

    def _opened(self) -> NodeSession:
        if self._session is None:
            raise RequestError("this stream has no session; open one first", code="no_session")
        return self._session

    def _telemetry(self) -> Answer:
        told = self._session.telemetry if self._session is not None else stage_pb2.StageTelemetry()
        return Answer("telemetry", told)

    def _ids(self) -> dict[str, object]:
        if self._session is None:
            return {}
        return {"request_id": self._session.work.request_id, "work_id": self._session.work.work_id}

    # ---- the end ----

    async def _finish(self, error: GgufWorkerError | None) -> None:
        """The session ends with its stream, and first."""
        self._queue.clear()
        try:
            if self._session is not None:
                is_late = error is not None and error.code == "deadline"
                await self._session.end("deadline" if is_late else "")
        except Exception:
            log.exception("a session was not ended as it should be")
        self._end_span(error)
        if error is not None and not isinstance(error, TransportClosed) and not self._was_told_why:
            await self._say_why(error)
        with anyio.move_on_after(self._settings.farewell_s):
            await self._transport.aclose(error)
        self._log_end(error)

    def _end_span(self, error: GgufWorkerError | None) -> None:
        with self._until_end:
            if self._span is None or self._session is None:
                return
            told = self._session.telemetry
            self._span.tell(
                forwards=told.forwards,
                rows=told.rows,
                tokens_sampled=told.tokens_sampled,
                queue_us=told.queue_us,
                compute_us=told.compute_us,
                finish_reason=self._session.end_reason or "",
            )
            if error is not None and self._session.end_reason == "":
                self._span.fail(error.code)

    async def _say_why(self, error: GgufWorkerError) -> None:
        with anyio.move_on_after(self._settings.farewell_s), suppress(TransportClosed):
            await self._send(0, _error_answer(error))

    def _log_refusal(self, refused: _OpenRefused) -> None:
        error, wanted = refused.error, refused.wanted
        log_event(
            log,
            logging.WARNING,
            "stage_refused",
            f"a session for {self._transport.peer} was refused: {error.message}",
            code=error.code,
            peer=self._transport.peer,
            request_id=wanted.request_id or None,
            work_id=wanted.work_id or None,
            layers=f"{wanted.identity.start}:{wanted.identity.end}",
        )

    def _log_end(self, error: GgufWorkerError | None) -> None:
        """One line for each session; for a stream that had none, only where it broke a rule."""
        peer = self._transport.peer
        if self._session is None:
            if error is not None and not isinstance(error, TransportClosed) and not self._was_told_why:
                text = f"a stream of {peer} was ended: {error.message}"
                log_event(log, logging.WARNING, "stage_refused", text, code=error.code, peer=peer)
            return
        session, told = self._session, self._session.telemetry
        log_event(
            log,
            logging.INFO,
            "stage_session",
            f"session of {peer} ended ({session.end_reason or (error.code if error else 'open work')}): "
            f"{told.rows} rows, {told.tokens_sampled} tokens",
            **self._ids(),
            peer=peer,
            account=session.work.account or None,
            layers="{}:{}".format(*session.layers),
            reason=session.end_reason,
            code=error.code if error is not None else None,
            forwards=told.forwards,
            rows=told.rows,
            tokens=told.tokens_sampled,
            queue_ms=told.queue_us / 1e3,
            compute_ms=told.compute_us / 1e3,
            node_ms=told.node_us / 1e3,
            duration_ms=(self._clock.now() - self._began) * 1e3,
        )


def _frame(number: int, answer: Answer) -> stage_pb2.StageFrame:
    frame = stage_pb2.StageFrame(request=number)
    getattr(frame, answer.body).CopyFrom(answer.message)
    return frame


def _size(answer: Answer) -> int:
    """Most bytes that its frame takes."""
    rows = memoryview(answer.rows).nbytes if answer.rows is not None else 0
    return answer.message.ByteSize() + rows + FRAME_OVERHEAD_BYTES


def _error_answer(error: GgufWorkerError) -> Answer:
    return Answer("error", codec.error_to_pb(error))


def _reason_of(cancel: stage_pb2.Cancel) -> str:
    """As a receipt says it."""
    return "deadline" if cancel.reason == "deadline" else "cancelled"


def _cancelled() -> RequestError:
    return RequestError("the request was cancelled by its client", code="cancelled")


def _internal() -> RequestError:
    return RequestError("the node failed; its log says how", code="internal", retryable=True)


def _too_large(body: str, n_bytes: int, limit: int) -> RequestError:
    return RequestError(
        f"the {body} takes {n_bytes} bytes and the client {limit}; ask for fewer rows at once",
        code="too_large",
        fields={"expected": str(limit), "actual": str(n_bytes)},
    )
