"""The host's side of one connection to a worker, as a state machine. No I/O.

    bytes in   read into `decoder.writable()`, `decoder.received(n)`, then `next_event()` until it gives None
    bytes out  `send(request)` gives an id and the buffers to write

The worker speaks first. Its hello fixes the version and the frame limit; from then on each request is
resolved exactly once, by its answer or by an `error`. What the worker does wrong is a RemoteProtocolError
and breaks the connection for good; what this side does wrong is a LocalProtocolError and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

from gguf_worker._schema import Buffer
from gguf_worker.errors import LocalProtocolError, RemoteProtocolError, RequestError, VersionMismatch
from gguf_worker.protocol.frames import FrameDecoder, FrameEncoder
from gguf_worker.protocol.limits import (
    DEFAULT_MAX_FRAME_BYTES,
    MAX_IN_FLIGHT,
    PROTOCOL_MAX,
    PROTOCOL_MIN,
)
from gguf_worker.protocol.messages import (
    ANSWER_OF,
    TO_HOST,
    Answer,
    Bye,
    Envelope,
    Error,
    Hello,
    Message,
    Progress,
    Request,
    Shutdown,
    decode_message,
    encode_message,
)


class ConnectionState(Enum):
    """Where a connection is."""

    EXPECT_HELLO = auto()
    OPEN = auto()
    STOPPING = auto()  # shutdown was sent; answers still come, requests are no longer taken
    CLOSED = auto()  # bye, a refusal or the end of the stream was seen
    BROKEN = auto()  # the worker broke the protocol


_OPEN = ConnectionState.OPEN
_ANSWERING = (ConnectionState.OPEN, ConnectionState.STOPPING)
"""Where answers may come."""


class Signal(Enum):
    """What moves a connection from one state to another."""

    HELLO = auto()
    REFUSAL = auto()
    SHUTDOWN_SENT = auto()
    BYE = auto()
    END_OF_STREAM = auto()
    PROTOCOL_ERROR = auto()


# A pair that is not here is the worker's mistake. The end of the stream and a protocol error may come at
# any time.
TRANSITIONS: dict[tuple[ConnectionState, Signal], ConnectionState] = {
    (ConnectionState.EXPECT_HELLO, Signal.HELLO): ConnectionState.OPEN,
    (ConnectionState.EXPECT_HELLO, Signal.REFUSAL): ConnectionState.CLOSED,
    (ConnectionState.OPEN, Signal.REFUSAL): ConnectionState.CLOSED,
    (ConnectionState.OPEN, Signal.SHUTDOWN_SENT): ConnectionState.STOPPING,
    (ConnectionState.STOPPING, Signal.REFUSAL): ConnectionState.CLOSED,
    (ConnectionState.OPEN, Signal.BYE): ConnectionState.CLOSED,  # it saw the end of its input
    (ConnectionState.STOPPING, Signal.BYE): ConnectionState.CLOSED,
    **{
        (state, Signal.END_OF_STREAM): ConnectionState.CLOSED
        for state in ConnectionState
        if state is not ConnectionState.BROKEN
    },
    **{(state, Signal.PROTOCOL_ERROR): ConnectionState.BROKEN for state in ConnectionState},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HelloReceived:
    """The worker introduced itself; requests may be sent now."""

    hello: Hello


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The worker gave up on the whole connection and is about to exit."""

    error: RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class ByeReceived:
    """The worker stops at the end of its input, without having been asked."""

    bye: Bye


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressReceived:
    """A request that takes long goes on."""

    id: int
    progress: Progress


class Resolved(NamedTuple):
    """A request has its one outcome."""

    id: int
    request: Request
    outcome: Answer | RequestError
    abandoned: bool


Event: TypeAlias = HelloReceived | Refused | ByeReceived | ProgressReceived | Resolved


class Outgoing(NamedTuple):
    """A request on its way: write `buffers` in order."""

    id: int
    buffers: list[Buffer]


@dataclass(slots=True, kw_only=True)
class HostConnection:
    """One connection; see the module's docstring."""

    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    protocol_min: int = PROTOCOL_MIN
    protocol_max: int = PROTOCOL_MAX
    state: ConnectionState = field(default=ConnectionState.EXPECT_HELLO, init=False)
    hello: Hello | None = field(default=None, init=False)
    decoder: FrameDecoder = field(init=False)
    _encoder: FrameEncoder = field(init=False)
    _in_flight: dict[int, Request] = field(default_factory=dict, init=False)
    _abandoned: set[int] = field(default_factory=set, init=False)
    _last_id: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.decoder = FrameDecoder(max_frame_bytes=self.max_frame_bytes)
        self._encoder = FrameEncoder(max_frame_bytes=self.max_frame_bytes)

    # ---- out ----

    def send(self, request: Request) -> Outgoing:
        """Registers a request and gives what to write for it."""
        if self.state is not _OPEN:
            raise LocalProtocolError(
                f"{request.type!r} cannot be sent while the connection is {self.state.name}"
            )
        if len(self._in_flight) >= MAX_IN_FLIGHT:
            raise RequestError(
                f"{MAX_IN_FLIGHT} requests wait for an answer already; try again later",
                code="busy",
                retryable=True,
            )
        request_id = self._last_id + 1
        values, large = encode_message(request, request_id)
        buffers = self._encoder.encode(values, large_key=request.large_key, large=large)
        self._last_id = request_id
        self._in_flight[request_id] = request
        if isinstance(request, Shutdown):
            self._move(Signal.SHUTDOWN_SENT)
        return Outgoing(request_id, buffers)

    def abandon(self, request_id: int) -> None:
        """Nobody waits for this request any more; its answer will be marked so."""
        if request_id in self._in_flight:
            self._abandoned.add(request_id)

    def forget(self, request_id: int) -> None:
        """This request was never written, so no answer will come."""
        self._in_flight.pop(request_id, None)
        self._abandoned.discard(request_id)

    @property
    def in_flight(self) -> dict[int, str]:
        """The ids and types of unanswered requests that somebody waits for."""
        return {i: request.type for i, request in self._in_flight.items() if i not in self._abandoned}

    @property
    def owed(self) -> dict[int, Request]:
        """Every request that has no answer yet, also those that nobody waits for."""
        return dict(self._in_flight)

    # ---- in ----

    def next_event(self) -> Event | None:
        """The next event, or None where more bytes are needed. Raises RemoteProtocolError or
        VersionMismatch."""
        try:
            frame = self.decoder.next_frame()
            if frame is None:
                return None
            return self._handle(decode_message(frame.body, TO_HOST), frame.version)
        except (RemoteProtocolError, VersionMismatch):
            self._move(Signal.PROTOCOL_ERROR)
            raise

    def end_of_stream(self) -> None:
        """The worker closed its end. Raises RemoteProtocolError when that was inside a frame."""
        if self.state is ConnectionState.BROKEN:
            return
        if self.decoder.buffered and self.state is not ConnectionState.CLOSED:
            self._move(Signal.PROTOCOL_ERROR)
            raise RemoteProtocolError(f"the stream ended {self.decoder.buffered} bytes into a frame")
        self._move(Signal.END_OF_STREAM)

    def _handle(self, envelope: Envelope, version: int) -> Event:
        request_id, message = envelope
        if request_id is None or isinstance(message, Hello):
            return self._handle_unasked(message, version)
        request = self._in_flight.get(request_id)
        if request is None or self.state not in _ANSWERING:
            raise _bad_message(
                f"{message.type!r} for request {request_id}, which is not waiting for an answer"
            )
        if isinstance(message, Progress):
            if not request.has_progress:
                raise _bad_message(f"progress for request {request_id} of type {request.type!r}")
            return ProgressReceived(id=request_id, progress=message)
        return self._resolve(request_id, request, message)

    def _handle_unasked(self, message: Message, version: int) -> Event:
        """What speaks of the whole connection."""
        if isinstance(message, Hello):
            return self._handle_hello(message, version)
        if isinstance(message, Error):
            self._move(Signal.REFUSAL)
            return Refused(error=_as_request_error(message))
        assert isinstance(message, Bye), "others have an id"
        self._move(Signal.BYE)
        return ByeReceived(bye=message)

    def _handle_hello(self, hello: Hello, version: int) -> Event:
        if self.state is not ConnectionState.EXPECT_HELLO:
            raise _bad_message("a second hello")
        if version != hello.protocol_min or hello.protocol_min > hello.protocol_max:
            raise _bad_message(
                f"hello of versions {hello.protocol_min} to {hello.protocol_max} "
                f"in a frame of version {version}"
            )
        chosen = self._choose_version(hello)
        self._encoder.version = self.decoder.version = chosen
        limit = min(self.max_frame_bytes, hello.max_frame_bytes)
        self._encoder.max_frame_bytes = self.decoder.max_frame_bytes = limit
        self.hello = hello
        self._move(Signal.HELLO)
        return HelloReceived(hello=hello)

    def _choose_version(self, hello: Hello) -> int:
        highest = min(self.protocol_max, hello.protocol_max)
        if highest < max(self.protocol_min, hello.protocol_min):
            ours, theirs = (
                f"{self.protocol_min} to {self.protocol_max}",
                f"{hello.protocol_min} to {hello.protocol_max}",
            )
            raise VersionMismatch(
                f"the worker speaks protocol versions {theirs}, this supervisor {ours}; "
                "install both from one gguf-worker",
                fields={"expected": ours, "actual": theirs},
            )
        return highest

    def _resolve(self, request_id: int, request: Request, message: Message) -> Event:
        expected = ANSWER_OF[type(request)]
        if isinstance(message, expected):
            outcome: Answer | RequestError = message
        elif isinstance(message, Error):
            outcome = _as_request_error(message)
        else:
            raise _bad_message(
                f"{message.type!r} as the answer to {request.type!r}; expected {expected.type!r}"
            )
        del self._in_flight[request_id]
        abandoned = request_id in self._abandoned
        if abandoned:
            self._abandoned.remove(request_id)
        if isinstance(outcome, Bye):
            self._move(Signal.BYE)
        return Resolved(request_id, request, outcome, abandoned)

    def _move(self, signal: Signal) -> None:
        try:
            self.state = TRANSITIONS[self.state, signal]
        except KeyError:
            raise _bad_message(f"{signal.name} while the connection is {self.state.name}") from None


def _as_request_error(error: Error) -> RequestError:
    return RequestError(error.message, code=error.code, retryable=error.retryable, fields=error.fields)


def _bad_message(text: str) -> RemoteProtocolError:
    return RemoteProtocolError(text, code="bad_message")
