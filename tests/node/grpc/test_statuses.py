"""Every error of a node has a status that a client of any make understands, and comes back as it was."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import grpc
import pytest

import gguf_worker
from gguf_worker.errors import GgufWorkerError, RequestError
from gguf_worker.node.grpc.statuses import (
    MAX_ERROR_BYTES,
    STATUSES,
    Status,
    details_of,
    refused,
    request_error,
    status_of,
    trailing_metadata,
    transport_closed,
)
from gguf_worker.node.transport import TransportClosed

PACKAGE = Path(gguf_worker.__file__).parent
ROOMS = (
    "errors.py",
    "work.py",
    "protocol",
    "process",
    "supervision",
    "identity",
    "node",
    "serving/address.py",
)
"""Whose errors can reach a stream or a call."""
PROTOCOL = PACKAGE.parents[1] / "docs" / "protocol.md"


def codes_of(file: Path) -> set[str]:
    """Codes that a file gives to errors."""
    found = set()
    for part in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(part, ast.keyword) and part.arg == "code":
            found |= words_in(part.value)
        if isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "default_code":
            found |= words_in(part.value)
    return found


def words_in(part: ast.AST) -> set[str]:
    """Every string in an expression that could be a code."""
    constants = [leaf.value for leaf in ast.walk(part) if isinstance(leaf, ast.Constant)]
    return {value for value in constants if isinstance(value, str) and value.isidentifier()}


def test_every_code_of_the_package_has_a_status() -> None:
    files = [
        file
        for room in ROOMS
        for file in ([PACKAGE / room] if room.endswith(".py") else (PACKAGE / room).rglob("*.py"))
    ]
    missing = {f"{file.name}: {code}" for file in files for code in codes_of(file) if code not in STATUSES}
    assert not missing


def test_every_code_of_the_pipe_has_a_status() -> None:
    table = PROTOCOL.read_text("utf-8").partition("### error (worker")[2].partition("## 5.")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    codes = {code for row in rows for code in re.findall(r"`([a-z_]+)`", row)}
    assert len(codes) > 15
    assert codes <= STATUSES.keys()


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("identity", grpc.StatusCode.FAILED_PRECONDITION),
        ("work_settled", grpc.StatusCode.FAILED_PRECONDITION),
        ("argument", grpc.StatusCode.INVALID_ARGUMENT),
        ("bad_frame", grpc.StatusCode.INVALID_ARGUMENT),
        ("position", grpc.StatusCode.INVALID_ARGUMENT),
        ("capacity", grpc.StatusCode.RESOURCE_EXHAUSTED),
        ("too_large", grpc.StatusCode.RESOURCE_EXHAUSTED),
        ("not_ready", grpc.StatusCode.UNAVAILABLE),
        ("draining", grpc.StatusCode.UNAVAILABLE),
        ("worker_died", grpc.StatusCode.UNAVAILABLE),
        ("cancelled", grpc.StatusCode.CANCELLED),
        ("deadline", grpc.StatusCode.DEADLINE_EXCEEDED),
        ("unauthenticated", grpc.StatusCode.UNAUTHENTICATED),
        ("version", grpc.StatusCode.UNIMPLEMENTED),
        ("a_strangers", grpc.StatusCode.UNKNOWN),
    ],
)
def test_what_a_status_says(code: str, status: grpc.StatusCode) -> None:
    assert status_of(GgufWorkerError("x", code=code)) is status


def told(error: GgufWorkerError) -> Status:
    """What a client is told of an error."""
    return Status(status_of(error), details_of(error), trailing_metadata(error), "node:1")


def test_an_error_comes_back_as_it_was() -> None:
    error = RequestError("no room\nleft", code="capacity", retryable=True, fields={"needed": "3"})
    back = request_error(told(error))
    assert isinstance(back, RequestError)
    assert (back.message, back.code, back.retryable, back.fields) == (
        "no room left",
        "capacity",
        True,
        {"needed": "3"},
    )


def test_fields_that_are_too_long_are_left_out() -> None:
    error = RequestError("x" * 5000, code="identity", fields={"all": "y" * 10_000})
    ((_, value),) = trailing_metadata(error)
    assert len(value) < MAX_ERROR_BYTES
    assert request_error(told(error)).fields == {}
    assert request_error(told(error)).code == "identity"


def test_text_of_a_file_that_is_no_text_is_told_nevertheless() -> None:
    error = RequestError("no \udcff", code="argument", fields={"path": "\udcff"})
    back = request_error(told(error))
    assert (back.message, back.fields) == ("no \ufffd", {"path": "\ufffd"})


def test_a_stream_that_ended_with_an_error() -> None:
    closed = transport_closed(told(GgufWorkerError("the frame is none", code="bad_frame")))
    assert (closed.code, closed.fields["peer_code"]) == ("lost", "bad_frame")
    assert closed.message == "node:1: the frame is none"


@pytest.mark.parametrize(
    ("status", "details", "code", "retryable"),
    [
        (grpc.StatusCode.OK, "", "closed", False),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", "lost", True),
        (grpc.StatusCode.UNAUTHENTICATED, "who are you", "unauthenticated", False),
        (grpc.StatusCode.PERMISSION_DENIED, "by a proxy", "unauthenticated", False),
        (grpc.StatusCode.UNIMPLEMENTED, "Method not found!", "version", False),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", "deadline", False),
        (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "SERVER: Received message larger than max (2 vs. 1)",
            "too_large",
            False,
        ),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!", "lost", True),
        (grpc.StatusCode.INTERNAL, "Received RST_STREAM", "lost", True),
    ],
)
def test_a_stream_that_ended_without_one(
    status: grpc.StatusCode, details: str, code: str, retryable: bool
) -> None:
    """gRPC's own ends, and those of whatever is on the way."""
    closed = transport_closed(Status(status, details, (), "node:1"))
    assert (closed.code, closed.retryable) == (code, retryable)
    assert "\n" not in closed.message


def test_an_error_that_is_none_is_not_believed() -> None:
    status = Status(grpc.StatusCode.UNAVAILABLE, "x", (("gguf-worker-error-bin", b"\xff\xff"),), "node:1")
    assert status.error is None
    assert transport_closed(status).code == "lost"


def test_a_dial_that_fails_is_unreachable_with_the_reason_and_the_remedy() -> None:
    details = (
        "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "
        "Failed to connect to remote host: Connection refused"
    )
    error = refused(Status(grpc.StatusCode.UNAVAILABLE, details, (), "node:1"))
    assert isinstance(error, TransportClosed)
    assert (error.code, error.retryable) == ("unreachable", True)
    assert error.message == (
        "node:1 cannot be reached: ipv4:127.0.0.1:1: Failed to connect to remote host: Connection refused "
        "(is the node running, and is this its address?)"
    )
