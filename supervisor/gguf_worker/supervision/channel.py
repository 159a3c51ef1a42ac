"""Joins the sans-io connection to a worker's pipes: many requests in flight, each resolved exactly once."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio

from gguf_worker.errors import (
    GgufWorkerError,
    LocalProtocolError,
    RemoteProtocolError,
    RequestError,
    RequestTimeout,
    VersionMismatch,
    WorkerStopped,
)
from gguf_worker.logs import bound_ids
from gguf_worker.process.pipes import Descriptor
from gguf_worker.process.transport import FrameWriter, Ticket, read_now, read_while
from gguf_worker.protocol.connection import (
    ByeReceived,
    ConnectionState,
    Event,
    HelloReceived,
    HostConnection,
    Outgoing,
    ProgressReceived,
    Refused,
    Resolved,
)
from gguf_worker.protocol.messages import (
    Answer,
    Bye,
    Cancel,
    Close,
    Closed,
    Health,
    Hello,
    Open,
    Opened,
    Progress,
    Request,
    Result,
    Shutdown,
)
from gguf_worker.supervision.trace import Outcome, is_traced, trace

logger = logging.getLogger("gguf_worker.supervision")

_STOPPING, _GONE = ConnectionState.STOPPING, (ConnectionState.BROKEN, ConnectionState.CLOSED)

AnswerT = TypeVar("AnswerT", bound=Answer)
ProgressCallback = Callable[[Progress], None]


@dataclass(slots=True, eq=False, kw_only=True)
class Pending:
    """A request that somebody waits for, and its outcome once there is one."""

    request: Request
    id: int
    submitted: float
    """When, by `time.monotonic()`, as all times here."""
    ids: Mapping[str, object]
    """What was bound where it was made."""
    timeout_s: float = math.inf
    """From the moment when somebody waited."""
    deadline: float = math.inf
    on_progress: ProgressCallback | None = None
    ticket: Ticket | None = None
    outcome: Answer | GgufWorkerError | None = None
    _resolved: asyncio.Future[None] | None = None
    """There once somebody waits; a future of the event loop's own is the cheapest thing to wait for."""

    @property
    def done(self) -> bool:
        return self.outcome is not None

    def __await__(self) -> Generator[Any, None, None]:
        """Waits until there is an outcome; one task may."""
        self._resolved = asyncio.Future()
        if self.outcome is not None:
            self._resolved.set_result(None)
        return self._resolved.__await__()

    def resolve(self, outcome: Answer | GgufWorkerError) -> None:
        assert self.outcome is None, f"request {self.id} was resolved twice"
        self.outcome = outcome
        if self._resolved is not None and not self._resolved.done():  # a waiter that was cancelled
            self._resolved.set_result(None)

    def fetch(self, answer: type[AnswerT]) -> AnswerT:
        """The answer, whose kind the connection has checked; raises the error that took its place."""
        if isinstance(self.outcome, GgufWorkerError):
            raise self.outcome
        assert isinstance(self.outcome, answer)
        return self.outcome

    def report(self, progress: Progress) -> None:
        if self.on_progress is None:
            return
        try:
            self.on_progress(progress)
        except Exception:
            logger.exception("the callback for progress failed")


@dataclass(slots=True, kw_only=True)
class Channel:
    """Requests to one worker process, for as long as it lives.

    `run_reader` and `run_writer` are run by the owner of the process, which also calls `end` once the
    process is gone. Nothing in here waits without one of these three coming.
    """

    pid: int
    """Of the worker, for logs."""
    connection: HostConnection
    stdin: Descriptor
    stdout: Descriptor
    on_fault: Callable[[RemoteProtocolError | VersionMismatch], None]
    """The worker broke the protocol; its owner must end it."""
    on_stream_end: Callable[[str], None]
    """The worker closed its end of a pipe, as the text says; it should be gone soon."""
    bye: Bye | None = None
    health: Health | None = None
    """The last one that the worker told, whoever asked."""
    sessions: set[int] = field(default_factory=set)
    """Sessions that the worker has opened and not yet closed."""
    opens_sessions: bool = True
    """False while the worker is drained."""
    n_frames: int = 0
    """Frames that came from the worker."""
    n_moves: int = 0
    """Of these, answers of the execution thread and reports of its progress."""
    phase: str = ""
    """What the last report of progress was about."""
    _greeted: anyio.Event = field(default_factory=anyio.Event)
    _refusal: RequestError | None = None
    _pending: dict[int, Pending] = field(default_factory=dict)
    _end: Callable[[], GgufWorkerError] | None = None
    _writer: FrameWriter = field(init=False)
    _last_unsent_id: int = 0
    _next_look: float = math.inf
    _look_sooner: anyio.Event = field(default_factory=anyio.Event)
    _quiet: anyio.Event = field(default_factory=anyio.Event)

    def __post_init__(self) -> None:
        self._writer = FrameWriter(
            descriptor=self.stdin, on_broken=lambda: self.on_stream_end("it closed its stdin")
        )

    # ---- requests ----

    async def hello(self) -> Hello:
        """The worker's hello. Raises the error that the worker sent in its place, or how it ended."""
        await self._greeted.wait()
        if self.connection.hello is not None:
            return self.connection.hello
        raise self._refusal or self._ended_error()

    @property
    def refusal(self) -> RequestError | None:
        """Why the worker gave up on the whole connection, where it said so."""
        return self._refusal

    @property
    def has_ended(self) -> bool:
        """Whether the worker is gone, or given up."""
        return self._end is not None

    @property
    def in_flight(self) -> dict[int, str]:
        """The ids and types of requests that somebody waits for."""
        return self.connection.in_flight

    def requests_of(self, session: int) -> tuple[int, ...]:
        """The ids of requests that name a session and that somebody waits for."""
        return tuple(
            pending.id
            for pending in self._pending.values()
            if getattr(pending.request, "session", None) == session
        )

    def submit(
        self,
        request: Request,
        on_progress: ProgressCallback | None = None,
    ) -> Pending:
        """Sends a request; its sender must wait for it (`outcome_of`) or `abandon` it."""
        if self._end is not None:
            raise self._ended_error()
        state = self.connection.state
        if state is _STOPPING:
            raise WorkerStopped(f"{request.type!r} was not sent: the worker is being stopped")
        if not self.opens_sessions and isinstance(request, Open):
            raise WorkerStopped("the worker is being drained and opens no session; ask another worker")
        if state in _GONE:
            request_id, buffers = self._register_unsent()
        else:
            request_id, buffers = self.connection.send(request)
        pending = self._pending[request_id] = Pending(
            request=request,
            id=request_id,
            submitted=time.monotonic(),
            ids=bound_ids(),
            on_progress=on_progress,
        )
        if buffers:
            pending.ticket = self._writer.post(buffers)
        return pending

    def _register_unsent(self) -> Outgoing:
        """Between the end of a connection and the end of its process nothing can be sent; such a request
        waits, under an id of its own, to be told how the process ended."""
        self._last_unsent_id -= 1
        return Outgoing(id=self._last_unsent_id, buffers=[])

    async def request(
        self,
        request: Request,
        answer: type[AnswerT],
        *,
        timeout_s: float = math.inf,
        on_progress: ProgressCallback | None = None,
    ) -> AnswerT:
        """Sends a request and waits for its answer. Without a deadline it may take as long as it makes
        progress: a worker that makes none is killed by its life's HangWatch.

        Raises RequestError for an `error` frame, RequestTimeout after `timeout_s`, WorkerDied when the
        worker dies first. When the deadline passes or the waiting task is cancelled, the worker is told to
        cancel the request.
        """
        return await self.outcome_of(self.submit(request, on_progress), answer, timeout_s)

    async def outcome_of(self, pending: Pending, answer: type[AnswerT], timeout_s: float) -> AnswerT:
        """Waits for the answer to a request that was submitted, as `request` does. Its time begins now."""
        pending.timeout_s, pending.deadline = timeout_s, time.monotonic() + timeout_s
        if pending.deadline < self._next_look:
            self._look_sooner.set()
        try:
            await pending
        except BaseException:
            self.abandon(pending)
            raise
        return pending.fetch(answer)

    def abandon(self, pending: Pending, *, cancel: bool = True) -> None:
        """Nobody waits for this request any more: it is taken back, or the worker is told to cancel it.
        Without `cancel` it runs where it runs already: to abort a step costs the other sessions in it more.

        There is no await in here: it must also work in a task that is being cancelled.
        """
        if self._end is not None:
            return
        if pending.done:
            self._undo(pending.outcome)
            return
        del self._pending[pending.id]
        self._tell_if_quiet()
        if isinstance(pending.request, Close):
            # Nobody but this request can end its session, so it stays on its way.
            self.connection.abandon(pending.id)
            return
        if pending.ticket is None or self._writer.withdraw(pending.ticket):
            self.connection.forget(pending.id)
            return
        self.connection.abandon(pending.id)
        if cancel and not pending.request.answered_by_control_thread:
            self._send_unattended(Cancel(request=pending.id))

    def ask_to_stop(self) -> bool:
        """Sends the shutdown request; False where the connection cannot carry it."""
        if self._end is not None or self.connection.state is not ConnectionState.OPEN:
            return False
        self._send_unattended(Shutdown())
        return True

    async def drained(self) -> None:
        """Opens no more sessions; returns when none is open and nobody waits for an answer."""
        self.opens_sessions = False
        while self.sessions or self._pending:
            if self._quiet.is_set():
                self._quiet = anyio.Event()
            await self._quiet.wait()

    def close_input(self) -> None:
        """Gives the worker its end of file."""
        self._writer.close()

    # ---- tasks of the owner ----

    async def run_writer(self) -> None:
        """Writes what could not be written at once."""
        await self._writer.run()

    async def run_reader(self) -> None:
        """Reads frames until the end of the stream or the first fault."""
        await read_while(self.stdout, self._on_readable)

    async def run_deadlines(self) -> None:
        """Fails the requests whose deadline has passed.

        One task for all of them: it sleeps until the earliest deadline that it knows of, and is woken only
        for an earlier one. A timer for each request would cost more than the request.
        """
        while True:
            self._next_look = min((p.deadline for p in self._pending.values()), default=math.inf)
            self._look_sooner = anyio.Event()
            with anyio.move_on_after(self._next_look - time.monotonic()):
                await self._look_sooner.wait()
            self._expire(time.monotonic())

    def drain(self, max_bytes: int) -> None:
        """Reads what an ended worker left in its pipe, without waiting for a process that holds the pipe
        open."""
        decoder = self.connection.decoder
        taken = 0
        while taken < max_bytes and self.connection.state not in (
            ConnectionState.BROKEN,
            ConnectionState.CLOSED,
        ):
            count = read_now(self.stdout, decoder.writable())
            if count is None or not self._take(count):
                return
            taken += count

    def end(self, error: Callable[[], GgufWorkerError]) -> None:
        """The worker is gone: every request that waits fails once, and so does each one after it."""
        self._end = error
        waiting, self._pending = self._pending, {}
        for pending in waiting.values():
            self._settle(pending, error())
        self.sessions.clear()
        self._greeted.set()
        self._quiet.set()

    # ---- in ----

    def _on_readable(self) -> bool:
        count = read_now(self.stdout, self.connection.decoder.writable())
        return count is None or self._take(count)

    def _expire(self, now: float) -> None:
        for pending in [p for p in self._pending.values() if p.deadline <= now]:
            self.abandon(pending)
            self._settle(pending, _timeout(pending))

    def _take(self, count: int) -> bool:
        """Handles `count` bytes that were read; False when there is nothing more to read."""
        if count == 0:
            self._take_end_of_stream()
            return False
        try:
            self.connection.decoder.received(count)
            while (event := self.connection.next_event()) is not None:
                self._handle(event)
        except (RemoteProtocolError, VersionMismatch) as error:
            self.on_fault(error)
            return False
        return True

    def _take_end_of_stream(self) -> None:
        """An end inside a frame is most often a crash in mid-write, so the exit status speaks first."""
        try:
            self.connection.end_of_stream()
        except RemoteProtocolError as error:
            self.on_stream_end(error.message)
        else:
            self.on_stream_end("it closed its stdout")

    def _handle(self, event: Event) -> None:
        self.n_frames += 1
        match event:
            case Resolved():
                self._resolve(event)
            case HelloReceived():
                self._greeted.set()
            case Refused(error=error):
                self._refusal = error
                self._greeted.set()
            case ByeReceived(bye=bye):
                self.bye = bye
            case ProgressReceived(id=request_id, progress=progress):
                self.n_moves += 1
                self.phase = progress.phase
                if request_id in self._pending:
                    self._pending[request_id].report(progress)

    def _resolve(self, event: Resolved) -> None:
        request_id, request, outcome, _ = event
        if not request.answered_by_control_thread:
            self.n_moves += 1
        match outcome:
            case Result():
                pass  # as most are: they say nothing of the worker
            case Bye():
                self.bye = outcome
            case Health():
                self.health = outcome
            case Opened(session=session):
                self.sessions.add(session)
            case Closed(session=session):
                self.sessions.discard(session)
        pending = self._pending.pop(request_id, None)
        if pending is not None:
            self._settle(pending, outcome)
        else:
            self._undo(outcome)
        if not self.sessions:
            self._tell_if_quiet()

    def _settle(self, pending: Pending, outcome: Answer | GgufWorkerError) -> None:
        pending.resolve(outcome)
        if is_traced(outcome):
            trace(
                Outcome(
                    worker_pid=self.pid,
                    request_id=pending.id,
                    request=pending.request,
                    ids=pending.ids,
                    duration_s=time.monotonic() - pending.submitted,
                    outcome=outcome,
                )
            )

    def _tell_if_quiet(self) -> None:
        if not self.sessions and not self._pending:
            self._quiet.set()

    def _undo(self, outcome: Answer | GgufWorkerError | None) -> None:
        """An answer came that nobody fetches. Only an opened session outlives its request; nobody else
        knows it."""
        if isinstance(outcome, Opened):
            self._send_unattended(Close(session=outcome.session))

    def _send_unattended(self, request: Request) -> None:
        """Sends a request whose answer nobody waits for."""
        try:
            outgoing = self.connection.send(request)
        except (LocalProtocolError, RequestError) as error:
            logger.debug("%s was not sent: %s", request.type, error)
            return
        self.connection.abandon(outgoing.id)
        self._writer.post(outgoing.buffers)

    def _ended_error(self) -> GgufWorkerError:
        assert self._end is not None
        return self._end()


def _timeout(pending: Pending) -> RequestTimeout:
    request: Any = pending.request
    fields = {"request": str(pending.id), "type": request.type, "timeout_s": f"{pending.timeout_s:g}"}
    if hasattr(request, "session"):
        fields["session"] = str(request.session)
    return RequestTimeout(
        f"request {pending.id} ({request.type}) was not answered within {pending.timeout_s:g} s "
        "and was cancelled",
        fields=fields,
    )
