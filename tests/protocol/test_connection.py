"""The host's side of a connection, against frames written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from gguf_worker.errors import (
    LocalProtocolError,
    RemoteProtocolError,
    RequestError,
    VersionMismatch,
)
from gguf_worker.protocol.connection import (
    TRANSITIONS,
    ByeReceived,
    ConnectionState,
    Event,
    HelloReceived,
    HostConnection,
    ProgressReceived,
    Refused,
    Resolved,
    Signal,
)
from gguf_worker.protocol.frames import FrameEncoder
from gguf_worker.protocol.limits import MAX_IN_FLIGHT
from gguf_worker.protocol.messages import (
    Bye,
    Cancel,
    Close,
    Closed,
    Forward,
    Inspect,
    Output,
    Ping,
    Pong,
    Shutdown,
)

BYE = {"sessions": 0, "kv_cells": 0, "weights_bytes": 0, "kv_bytes": 0, "compute_bytes": 0}


def hello(**changes: Any) -> dict[str, Any]:
    build = dict.fromkeys(
        (
            "engine",
            "engine_version",
            "pinned_package",
            "pinned_commit",
            "library_commit",
            "library_version",
        ),
        "",
    )
    return {
        "type": "hello",
        "protocol_min": 1,
        "protocol_max": 1,
        "max_frame_bytes": 65536,
        "pid": 1,
        "worker_version": "0",
        "engines": ["fake"],
        "build": {**build, "devices": []},
        **changes,
    }


def receive(connection: HostConnection, message: dict[str, Any], version: int = 1) -> Event:
    """The event that one frame makes."""
    data = b"".join(FrameEncoder(version=version).encode(message))
    connection.decoder.writable()[: len(data)] = data
    connection.decoder.received(len(data))
    event = connection.next_event()
    assert event is not None
    assert connection.next_event() is None
    return event


def opened(**arguments: Any) -> HostConnection:
    connection = HostConnection(**arguments)
    receive(connection, hello())
    return connection


def test_hello_opens_the_connection_and_sets_its_limits() -> None:
    """From hello on both sides know the version and the smaller of the two frame limits."""
    connection = HostConnection()
    with pytest.raises(LocalProtocolError, match="EXPECT_HELLO"):
        connection.send(Ping())
    assert isinstance(receive(connection, hello()), HelloReceived)
    assert connection.state is ConnectionState.OPEN
    assert (connection.decoder.version, connection.decoder.max_frame_bytes) == (1, 65536)


def test_hello_of_a_wider_range_chooses_the_highest_version_of_both() -> None:
    """The version byte of every later frame is the highest that both sides speak."""
    connection = HostConnection(protocol_min=2, protocol_max=4)
    receive(connection, hello(protocol_min=1, protocol_max=3), version=1)
    assert bytes(connection.send(Ping()).buffers[0])[2] == 3


def test_hello_without_a_common_version_names_both_ranges() -> None:
    """Two sides that share no version part at once, and both ranges are said."""
    connection = HostConnection()
    with pytest.raises(VersionMismatch) as caught:
        receive(connection, hello(protocol_min=2, protocol_max=5), version=2)
    assert caught.value.fields == {"expected": "1 to 1", "actual": "2 to 5"}
    assert connection.state is ConnectionState.BROKEN


@pytest.mark.parametrize(
    "changes", [{"protocol_min": 2, "protocol_max": 1}, {"protocol_min": 2, "protocol_max": 2}]
)
def test_hello_that_contradicts_its_frame_is_refused(changes: dict[str, int]) -> None:
    """The hello's frame carries the lowest version of its own range."""
    with pytest.raises(RemoteProtocolError):
        receive(HostConnection(), hello(**changes), version=1)


def test_refusal_in_place_of_hello_closes_the_connection() -> None:
    """A worker that will not serve says why, and nothing can be sent to it."""
    connection = HostConnection()
    error = {
        "type": "error",
        "id": None,
        "code": "identity",
        "message": "no",
        "retryable": False,
        "fields": {"expected": "a"},
    }
    event = receive(connection, error)
    assert isinstance(event, Refused)
    assert (event.error.code, event.error.fields) == ("identity", {"expected": "a"})
    assert connection.state is ConnectionState.CLOSED


def test_answers_resolve_their_requests_in_any_order() -> None:
    """Requests in flight are told apart by id."""
    connection = opened()
    first, second = connection.send(Ping()), connection.send(Close(session=3))
    event = receive(connection, {"type": "closed", "id": second.id, "session": 3, "kv_cells_freed": 4})
    assert event == Resolved(
        id=second.id,
        request=Close(session=3),
        outcome=Closed(session=3, kv_cells_freed=4),
        abandoned=False,
    )
    assert connection.in_flight == {first.id: "ping"}
    event = receive(connection, {"type": "pong", "id": first.id})
    assert isinstance(event, Resolved)
    assert event.outcome == Pong()


def test_error_frame_resolves_its_request_with_a_request_error() -> None:
    """An error frame is the outcome of its request and breaks nothing."""
    connection = opened()
    sent = connection.send(Ping())
    error = {"code": "busy", "message": "wait", "retryable": True, "fields": {"queued": "256"}}
    event = receive(connection, {"type": "error", "id": sent.id, **error})
    assert isinstance(event, Resolved)
    assert isinstance(event.outcome, RequestError)
    assert (event.outcome.code, event.outcome.retryable) == ("busy", True)
    assert connection.state is ConnectionState.OPEN


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"type": "pong", "id": 99}, "not waiting"),
        ({"type": "closed", "id": 1, "session": 1, "kv_cells_freed": 0}, "expected 'pong'"),
        ({"type": "pong"}, "has no id"),
        ({"type": "ping", "id": 1}, "unknown type"),
        ({"type": "progress", "id": 1, "phase": "load", "done": 0, "total": 1}, "progress for request"),
        (hello(), "second hello"),
        ({"type": "bye", "id": 1, **BYE}, "expected 'pong'"),
    ],
)
def test_answer_that_nobody_asked_for_breaks_the_connection(message: dict[str, Any], reason: str) -> None:
    """A worker that answers what was not asked cannot be trusted with anything else."""
    connection = opened()
    connection.send(Ping())
    with pytest.raises(RemoteProtocolError, match=reason):
        receive(connection, message)
    assert connection.state is ConnectionState.BROKEN
    with pytest.raises(LocalProtocolError):
        connection.send(Ping())


def test_second_answer_breaks_the_connection() -> None:
    """Each request is resolved exactly once."""
    connection = opened()
    sent = connection.send(Ping())
    receive(connection, {"type": "pong", "id": sent.id})
    with pytest.raises(RemoteProtocolError, match="not waiting"):
        receive(connection, {"type": "pong", "id": sent.id})


def test_progress_comes_before_the_answer_of_a_long_request() -> None:
    """Progress names its request and leaves it open."""
    connection = opened()
    sent = connection.send(Inspect(model="m"))
    event = receive(connection, {"type": "progress", "id": sent.id, "phase": "digest", "done": 1, "total": 2})
    assert isinstance(event, ProgressReceived)
    assert (event.id, event.progress.phase) == (sent.id, "digest")
    assert sent.id in connection.in_flight


def test_abandoned_request_keeps_its_id_until_its_answer_came() -> None:
    """A late answer is known as such; it neither breaks the connection nor reaches another request."""
    connection = opened()
    sent = connection.send(Ping())
    connection.abandon(sent.id)
    assert connection.in_flight == {}
    event = receive(connection, {"type": "pong", "id": sent.id})
    assert isinstance(event, Resolved)
    assert event.abandoned


def test_shutdown_ends_with_bye_and_takes_no_more_requests() -> None:
    """After shutdown only answers come, and bye is the last of them."""
    connection = opened()
    waiting, last = connection.send(Ping()), connection.send(Shutdown())
    with pytest.raises(LocalProtocolError, match="STOPPING"):
        connection.send(Ping())
    receive(connection, {"type": "pong", "id": waiting.id})
    event = receive(connection, {"type": "bye", "id": last.id, **BYE})
    assert isinstance(event, Resolved)
    assert isinstance(event.outcome, Bye)
    assert connection.state is ConnectionState.CLOSED


def test_bye_of_its_own_accord_closes_the_connection() -> None:
    """A worker that saw the end of its input says bye without having been asked."""
    connection = opened()
    assert receive(connection, {"type": "bye", "id": None, **BYE}) == ByeReceived(bye=Bye(**BYE))
    assert connection.state is ConnectionState.CLOSED


def test_end_of_stream_between_frames_closes_and_inside_one_breaks() -> None:
    """Half a frame at the end is told apart from a clean end."""
    connection = opened()
    connection.end_of_stream()
    assert connection.state is ConnectionState.CLOSED
    broken = opened()
    broken.decoder.writable()[:3] = b"GW\x01"
    broken.decoder.received(3)
    with pytest.raises(RemoteProtocolError, match="3 bytes into a frame"):
        broken.end_of_stream()
    assert broken.state is ConnectionState.BROKEN


def test_send_over_the_frame_limit_changes_nothing() -> None:
    """A request that is too large is refused here, and its id is not used up."""
    connection = opened()
    with pytest.raises(LocalProtocolError, match="fewer rows"):
        connection.send(Forward(session=1, position=0, output=Output.NONE, hidden=bytes(70_000)))
    assert connection.in_flight == {}
    assert connection.send(Ping()).id == 1


def test_send_beyond_the_limit_of_requests_in_flight_is_busy() -> None:
    """What waits for answers is bounded, and the caller may try again."""
    connection = opened()
    for _ in range(MAX_IN_FLIGHT):
        connection.send(Ping())
    with pytest.raises(RequestError) as caught:
        connection.send(Cancel(request=1))
    assert (caught.value.code, caught.value.retryable) == ("busy", True)


def test_transitions_never_leave_a_broken_connection() -> None:
    """Nothing but another error can happen to a connection that is broken."""
    leaving = {
        signal: after for (before, signal), after in TRANSITIONS.items() if before is ConnectionState.BROKEN
    }
    assert leaving == {Signal.PROTOCOL_ERROR: ConnectionState.BROKEN}
