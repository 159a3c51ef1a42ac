"""Errors as gRPC statuses, and back: the status for every client there is, and beside it the error itself."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from gguf_worker.errors import GgufWorkerError, RequestError
from gguf_worker.node import codec
from gguf_worker.node.transport import TransportClosed
from gguf_worker_v1 import common_pb2

ERROR_KEY: Final = "gguf-worker-error-bin"
"""Of the trailing metadata: a serialised gguf_worker.v1.Error."""
MAX_MESSAGE_CHARACTERS: Final = 1024
MAX_ERROR_BYTES: Final = 6 * 1024
"""gRPC's peers take 8 KiB of metadata by default."""

_S = grpc.StatusCode

_CODES: Final[Mapping[grpc.StatusCode, str]] = MappingProxyType(
    {
        # Another request may do.
        _S.INVALID_ARGUMENT: """argument bad_frame bad_message malformed non_finite plan position
            range sequence""",
        _S.NOT_FOUND: "no_route no_session not_found",
        # The same one may do elsewhere, or after something was changed.
        _S.FAILED_PRECONDITION: """address cache_folder certificate certificate_conflict closed
            executable_not_found identity ledger_corrupt ledger_locked ledger_version load_rejected name
            name_taken nats_options nats_tls no_draw node_config not_batched not_owned pin protocol_version
            route security session_closed session_open spawn_failed startup superseded token_file unreleased
            unsupported work_conflict work_settled""",
        # The same one may do later.
        _S.RESOURCE_EXHAUSTED: "busy capacity memory no_space too_large",
        _S.UNAVAILABLE: """draining given_up ledger lost nats nats_unreachable not_loaded not_ready
            shutting_down stage_gone stage_lost stopped tracker unreachable worker_died""",
        _S.CANCELLED: "cancelled",
        _S.DEADLINE_EXCEEDED: "deadline timeout idle",
        _S.UNAUTHENTICATED: "unauthenticated",
        _S.UNIMPLEMENTED: "version",
        # A defect of ours or of what computes.
        _S.INTERNAL: "backend error internal io local_protocol registration",
    }
)

STATUSES: Final[Mapping[str, grpc.StatusCode]] = MappingProxyType(
    {code: status for status, codes in _CODES.items() for code in codes.split()}
)
"""The status of each code of an error."""

_CLOSED_CODES = frozenset(
    {"closed", "unreachable", "lost", "unauthenticated", "too_large", "version", "deadline"}
)

_WITHOUT_ERROR: Final[Mapping[grpc.StatusCode, str]] = MappingProxyType(
    {
        _S.OK: "closed",
        _S.CANCELLED: "closed",
        _S.UNAUTHENTICATED: "unauthenticated",
        _S.PERMISSION_DENIED: "unauthenticated",
        _S.UNIMPLEMENTED: "version",
        _S.DEADLINE_EXCEEDED: "deadline",
    }
)
"""What a status means that comes without an error of ours: from gRPC itself, or from something on the way."""

_TOO_LARGE = "larger than max"
"""How gRPC words it."""


def status_of(error: GgufWorkerError) -> grpc.StatusCode:
    """The status of an error; UNKNOWN where its code is a stranger's."""
    return STATUSES.get(error.code, grpc.StatusCode.UNKNOWN)


def details_of(error: GgufWorkerError) -> str:
    """The status message: one line."""
    return " ".join(codec.text(error.message).split())[:MAX_MESSAGE_CHARACTERS]


def trailing_metadata(error: GgufWorkerError) -> tuple[tuple[str, bytes], ...]:
    """The error for the trailing metadata; without its fields where they are too long."""
    message = codec.error_to_pb(error)
    message.message = details_of(error)
    if message.ByteSize() > MAX_ERROR_BYTES:
        message.ClearField("fields")
    return ((ERROR_KEY, message.SerializeToString()),)


@dataclass(frozen=True, slots=True)
class Status:
    """How a call ended, as the client has it."""

    code: grpc.StatusCode
    details: str
    metadata: tuple[tuple[str, str | bytes], ...]
    peer: str

    @property
    def error(self) -> common_pb2.Error | None:
        """What the node itself said."""
        for key, value in self.metadata:
            if key == ERROR_KEY and isinstance(value, bytes):
                with suppress(DecodeError):
                    return common_pb2.Error.FromString(value)
        return None


def request_error(status: Status) -> GgufWorkerError:
    """Why a call failed: RequestError where the node refused it, else TransportClosed."""
    told = status.error
    if told is None or told.code in _CLOSED_CODES:
        return refused(status)
    return RequestError(told.message, code=told.code, retryable=told.retryable, fields=dict(told.fields))


def refused(status: Status) -> TransportClosed:
    """Why there is no stream to a node."""
    closed = transport_closed(status)
    if closed.code not in ("lost", "closed"):
        return closed
    told = status.error
    return unreachable(status.peer, _reason(status.details) if told is None else told.message)


def transport_closed(status: Status) -> TransportClosed:
    """Why a stream ended."""
    told, peer = status.error, status.peer
    if told is not None:
        return TransportClosed(
            f"{peer}: {told.message}",
            code=told.code if told.code in _CLOSED_CODES else "lost",
            retryable=told.retryable,
            fields={**told.fields, "peer": peer, "peer_code": told.code},
        )
    if status.code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in status.details:
        return too_large(peer, status.details)
    code = _WITHOUT_ERROR.get(status.code, "lost")
    return TransportClosed(
        f"{peer}: {_words(status)}", code=code, retryable=code == "lost", fields={"peer": peer}
    )


def too_large(peer: str, details: str) -> TransportClosed:
    """A frame that one of both ends does not take."""
    return TransportClosed(
        f"{peer}: a frame is too large ({details}); send fewer rows at once, or raise the limit on both ends",
        code="too_large",
        fields={"peer": peer},
    )


def unreachable(peer: str, reason: str) -> TransportClosed:
    """No stream to a node at this address, now."""
    return TransportClosed(
        f"{peer} cannot be reached: {reason}", code="unreachable", retryable=True, fields={"peer": peer}
    )


def _words(status: Status) -> str:
    details = " ".join(status.details.split())
    if status.code is grpc.StatusCode.OK:
        return "the node has ended the stream"
    if status.code is grpc.StatusCode.UNIMPLEMENTED:
        return (
            f"this is no node of gguf_worker.v1 ({details}); check the address, and that both ends have the "
            "same major version"
        )
    if status.code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "no answer in time"
    return f"the stream is lost ({_reason(details) or status.code.name.lower()})"


def _reason(details: str) -> str:
    """gRPC's own words, without those that say nothing, and what may be done."""
    reason = " ".join(details.split()).rpartition("last error: ")[2]
    reason = reason.removeprefix("UNKNOWN: ").removeprefix("UNAVAILABLE: ")
    return next((f"{reason} ({remedy})" for words, remedy in _REMEDIES.items() if words in reason), reason)


_REMEDIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Connection refused": "is the node running, and is this its address?",
        "WRONG_VERSION_NUMBER": "the node listens without TLS",
        "certificate has expired": "the node's certificate must be renewed",
        "Hostname Verification": "the node's certificate is not made out to this host; dial the name in it",
        "CERTIFICATE_VERIFY_FAILED": "no authority that was given vouches for the node's certificate",
        "Socket closed": "does it want TLS, or a certificate of the client?",
        "Connection reset": "does it want TLS, or a certificate of the client?",
    }
)


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: GgufWorkerError) -> NoReturn:
    """Ends a call with an error."""
    await context.abort(status_of(error), details_of(error), trailing_metadata(error))
