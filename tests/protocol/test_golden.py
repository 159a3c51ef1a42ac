"""The golden frames: whole, byte by byte and with trailing data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import golden_frames
from gguf_worker._schema import Buffer
from gguf_worker.errors import RemoteProtocolError
from gguf_worker.protocol.frames import FrameDecoder, FrameEncoder
from gguf_worker.protocol.messages import (
    TO_HOST,
    TO_WORKER,
    Envelope,
    decode_message,
    encode_message,
)
from golden_frames import Golden

ALL = golden_frames.load()
OK = [golden for golden in ALL if golden.verdict == "ok"]
BAD_FRAME = [golden for golden in ALL if golden.verdict == "bad_frame"]
BAD_MESSAGE = [golden for golden in ALL if golden.verdict == "bad_message"]

PARTIAL_IDENTITY = "open_identity_missing"
"""A worker must answer this one; a host has no way to say it, because an Identity is always whole."""
SENDABLE = [golden for golden in OK if golden.name != PARTIAL_IDENTITY]


def name_of(golden: Golden) -> str:
    return golden.name


def decode(data: bytes, chunk: int) -> Iterator[dict[str, object]]:
    """The bodies of the frames in `data`, fed in pieces of `chunk` bytes."""
    decoder = FrameDecoder(version=1)
    while data:
        room = decoder.writable()
        piece = data[: min(chunk, len(room))]
        data = data[len(piece) :]
        room[: len(piece)] = piece
        decoder.received(len(piece))
        while (frame := decoder.next_frame()) is not None:
            yield frame.body


def same(found: object, expected: object) -> bool:
    """Compared as text: a NaN does not equal itself, and 1 is not 1.0 on the wire."""
    return repr(found) == repr(expected)


def message_of(golden: Golden) -> Envelope:
    (body,) = decode(golden.frame, len(golden.frame))
    return decode_message(body, TO_WORKER if golden.direction == "to_worker" else TO_HOST)


def test_golden_frames_cover_every_message_and_verdict() -> None:
    """The file names each message of both directions at least once, and each verdict."""
    assert {golden.message["type"] for golden in OK if golden.direction == "to_host"} == set(TO_HOST)
    to_worker = {golden.message["type"] for golden in OK if golden.direction == "to_worker"}
    assert to_worker - {b"ping"} == set(TO_WORKER)
    assert len(BAD_FRAME) > 20
    assert len(BAD_MESSAGE) > 20


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20], ids=["bytewise", "sevens", "whole"])
@pytest.mark.parametrize("golden", OK + BAD_MESSAGE, ids=name_of)
def test_golden_frame_reads_as_its_message(golden: Golden, chunk: int) -> None:
    """A frame gives the same map however its bytes arrive."""
    assert same(list(decode(golden.frame, chunk)), [golden.message])


@pytest.mark.parametrize("golden", OK + BAD_MESSAGE, ids=name_of)
def test_golden_frame_with_trailing_data_reads_twice(golden: Golden) -> None:
    """What follows a frame belongs to the next one, and an incomplete rest waits."""
    assert same(list(decode(golden.frame * 2 + golden.frame[:5], 1 << 20)), [golden.message] * 2)


@pytest.mark.parametrize("chunk", [1, 1 << 20], ids=["bytewise", "whole"])
@pytest.mark.parametrize("golden", BAD_FRAME, ids=name_of)
def test_golden_bad_frame_is_refused_for_good(golden: Golden, chunk: int) -> None:
    """A broken frame is a typed error, however its bytes arrive."""
    with pytest.raises(RemoteProtocolError) as caught:
        list(decode(golden.frame, chunk))
    assert caught.value.code == "bad_frame"


@pytest.mark.parametrize("golden", BAD_MESSAGE, ids=name_of)
def test_golden_bad_message_is_refused(golden: Golden) -> None:
    """A whole frame whose message is not valid is told apart from a broken one."""
    with pytest.raises(RemoteProtocolError) as caught:
        message_of(golden)
    assert caught.value.code == "bad_message"


@pytest.mark.parametrize("golden", SENDABLE, ids=name_of)
def test_golden_message_survives_writing_and_reading(golden: Golden) -> None:
    """A message that was read can be written, and reads the same again."""
    envelope = message_of(golden)
    values, large = encode_message(envelope.message, envelope.id)
    key = envelope.message.large_key
    written = join(FrameEncoder().encode(values, large_key=key, large=large))
    (body,) = decode(written, len(written))
    known = TO_WORKER if golden.direction == "to_worker" else TO_HOST
    assert decode_message(body, known) == envelope


@pytest.mark.parametrize("golden", [g for g in SENDABLE if g.direction == "to_worker"], ids=name_of)
def test_golden_request_is_written_as_the_document_says(golden: Golden) -> None:
    """Every key of a golden request that has a meaning is in what the host writes for it, with the same
    value."""
    envelope = message_of(golden)
    values, large = encode_message(envelope.message, envelope.id)
    if large is not None:
        assert envelope.message.large_key is not None
        values[envelope.message.large_key] = large
    assert_says(values, known_keys(golden))


def known_keys(golden: Golden) -> dict[str, Any]:
    """The message without the keys that were put there to be skipped."""
    extra = ("colour", "deep")
    message: dict[str, Any] = golden.message
    return {key: value for key, value in message.items() if key not in extra and not key.startswith("key_")}


def assert_says(written: Any, asked: Any) -> None:
    """What was written holds what was asked: nil may be left out, defaults may be added, and `str` and `bin`
    stand for each other."""
    if isinstance(asked, dict):
        for key, value in asked.items():
            if value is not None:
                assert_says(written[key], value)
    elif isinstance(asked, (str, bytes)):
        assert as_bytes(written) == as_bytes(asked)
    else:
        assert written == asked


def as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def join(buffers: list[Buffer]) -> bytes:
    return b"".join(buffers)
