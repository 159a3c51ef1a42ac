"""Frames: headers, buffers, limits."""

from __future__ import annotations

import struct

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_worker.errors import LocalProtocolError, RemoteProtocolError
from gguf_worker.protocol.frames import (
    FIRST_BUFFER_BYTES,
    RETAINED_BUFFER_BYTES,
    FrameDecoder,
    FrameEncoder,
)
from gguf_worker.protocol.limits import MAX_DEPTH, MAX_KEYS


def feed(decoder: FrameDecoder, data: bytes) -> list[dict[str, object]]:
    """The bodies of the frames that `data` completes."""
    bodies = []
    while data:
        room = decoder.writable()
        piece, data = data[: len(room)], data[len(room) :]
        room[: len(piece)] = piece
        decoder.received(len(piece))
        while (frame := decoder.next_frame()) is not None:
            bodies.append(frame.body)
    return bodies


def frame(body: bytes, *, version: int = 1) -> bytes:
    return struct.pack("<2sBBI", b"GW", version, 0, len(body)) + body


def test_decoder_refuses_a_length_over_the_limit_from_its_header_alone() -> None:
    """Eight bytes are enough to refuse a frame; its body is neither waited for nor made room for."""
    decoder = FrameDecoder(max_frame_bytes=1000)
    with pytest.raises(RemoteProtocolError) as caught:
        feed(decoder, struct.pack("<2sBBI", b"GW", 1, 0, 1001))
    assert caught.value.fields == {"bytes": "1001", "max_frame_bytes": "1000"}
    assert decoder.capacity == FIRST_BUFFER_BYTES


def test_decoder_with_a_lying_header_keeps_its_buffer_small() -> None:
    """A claimed length costs nothing: the buffer follows the bytes that arrived."""
    decoder = FrameDecoder()
    assert feed(decoder, struct.pack("<2sBBI", b"GW", 1, 0, 60 << 20) + bytes(1000)) == []
    assert decoder.capacity == FIRST_BUFFER_BYTES


def test_decoder_reads_a_frame_larger_than_its_buffer() -> None:
    """The buffer grows with a large frame and is given back when it became very large."""
    decoder = FrameDecoder()
    rows = bytes(range(256)) * (RETAINED_BUFFER_BYTES // 256)
    assert feed(decoder, frame(msgpack.packb({"hidden": rows}))) == [{"hidden": rows}]
    assert decoder.capacity == FIRST_BUFFER_BYTES
    assert feed(decoder, frame(msgpack.packb({"a": 1}))) == [{"a": 1}]


def test_decoder_buffer_never_exceeds_one_frame() -> None:
    """However frames lie in the buffer, it is at most one header and one largest body long."""
    decoder = FrameDecoder(max_frame_bytes=300_000)
    body = msgpack.packb({"x": bytes(290_000)})
    for _ in range(5):
        assert len(feed(decoder, frame(body))) == 1
        assert decoder.capacity <= 300_008


def test_decoder_error_sticks() -> None:
    """After the first error nothing more is read from a stream that cannot be trusted."""
    decoder = FrameDecoder()
    with pytest.raises(RemoteProtocolError):
        feed(decoder, b"XX" + bytes(6))
    with pytest.raises(RemoteProtocolError):
        decoder.next_frame()
    with pytest.raises(RemoteProtocolError):
        decoder.writable()


def test_decoder_with_a_fixed_version_names_both() -> None:
    """Once a version is agreed, a frame of another is refused and both are named."""
    with pytest.raises(RemoteProtocolError) as caught:
        feed(FrameDecoder(version=1), frame(msgpack.packb({}), version=2))
    assert caught.value.fields == {"expected": "1", "actual": "2"}


def test_decoder_accepts_64_keys_and_refuses_65() -> None:
    """The outer map has a limit of keys."""
    assert len(feed(FrameDecoder(), frame(msgpack.packb({str(i): i for i in range(MAX_KEYS)})))) == 1
    with pytest.raises(RemoteProtocolError, match="65 keys"):
        feed(FrameDecoder(), frame(msgpack.packb({str(i): i for i in range(MAX_KEYS + 1)})))


@pytest.mark.parametrize("container", ["list", "dict"])
def test_decoder_accepts_8_levels_and_refuses_9(container: str) -> None:
    """Nesting has a limit; the outer map is the first level."""
    value: object = 0
    for _ in range(MAX_DEPTH - 1):
        value = [value] if container == "list" else {"k": value}
    assert feed(FrameDecoder(), frame(msgpack.packb({"k": value}))) == [{"k": value}]
    with pytest.raises(RemoteProtocolError, match="deeper than 8"):
        feed(FrameDecoder(), frame(msgpack.packb({"k": [value]})))


def test_encoder_gives_the_large_value_back_without_a_copy() -> None:
    """The rows are written from the caller's own memory."""
    rows = bytearray(struct.pack("<4f", 1, 2, 3, 4))
    head, body = FrameEncoder().encode({"type": "forward"}, large_key="hidden", large=memoryview(rows))
    assert isinstance(body, memoryview)
    assert body.obj is rows
    assert feed(FrameDecoder(), bytes(head) + bytes(body)) == [{"type": "forward", "hidden": bytes(rows)}]


@pytest.mark.parametrize("length", [0, 1, 255, 256, 65_535, 65_536])
def test_encoder_writes_a_large_value_of_any_length(length: int) -> None:
    """Each width of the length of a binary value is written as msgpack has it."""
    buffers = FrameEncoder().encode({"a": 1}, large_key="hidden", large=bytes(length))
    assert feed(FrameDecoder(), b"".join(buffers)) == [{"a": 1, "hidden": bytes(length)}]


def test_encoder_refuses_a_frame_over_the_limit() -> None:
    """This side's mistake is a LocalProtocolError with the remedy, and sends nothing."""
    with pytest.raises(LocalProtocolError, match="send fewer rows") as caught:
        FrameEncoder(max_frame_bytes=100).encode({"a": 1}, large_key="hidden", large=bytes(100))
    assert caught.value.fields["max_frame_bytes"] == "100"


@pytest.mark.parametrize("value", [object(), 2**64, {1, 2}])
def test_encoder_refuses_what_cannot_travel_and_goes_on(value: object) -> None:
    """A value that msgpack does not know is this side's mistake; the next frame is not disturbed."""
    encoder = FrameEncoder()
    with pytest.raises(LocalProtocolError, match="'ping' cannot be sent"):
        encoder.encode({"type": "ping", "value": value})
    assert feed(FrameDecoder(), b"".join(encoder.encode({"type": "ping"}))) == [{"type": "ping"}]


@given(data=st.binary(max_size=200), prefix=st.sampled_from([b"", b"GW", b"GW\x01\x00", frame(b"\x80")]))
@settings(max_examples=400, deadline=None)
def test_decoder_fed_anything_gives_maps_or_one_error(data: bytes, prefix: bytes) -> None:
    """Whatever arrives, the decoder gives maps, waits for more, or raises RemoteProtocolError; nothing
    else."""
    decoder = FrameDecoder(max_frame_bytes=4096)
    try:
        bodies = feed(decoder, prefix + data)
    except RemoteProtocolError:
        return
    assert all(isinstance(body, dict) for body in bodies)
    assert decoder.buffered < 4096 + 8


@given(body=st.binary(max_size=300))
@settings(max_examples=400, deadline=None)
def test_decoder_fed_any_body_gives_a_map_or_an_error(body: bytes) -> None:
    """Inside a whole frame, any bytes are one map or a RemoteProtocolError."""
    try:
        (decoded,) = feed(FrameDecoder(), frame(body))
    except RemoteProtocolError:
        return
    assert all(isinstance(key, str) for key in decoded)


_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
)
_LISTS = st.lists(_LEAVES, max_size=3)
_VALUES = _LEAVES | _LISTS | st.dictionaries(st.text(max_size=5), _LEAVES | _LISTS, max_size=3)


@given(
    messages=st.lists(st.dictionaries(st.text(max_size=5), _VALUES, max_size=5), min_size=1, max_size=4),
    chunk=st.integers(1, 64),
)
@settings(max_examples=200, deadline=None)
def test_frames_survive_any_chunking(messages: list[dict[str, object]], chunk: int) -> None:
    """What the encoder writes, the decoder reads, however the bytes are cut."""
    encoder, decoder = FrameEncoder(), FrameDecoder(version=1)
    data = b"".join(buffer for message in messages for buffer in encoder.encode(message))
    read = []
    for start in range(0, len(data), chunk):
        read += feed(decoder, data[start : start + chunk])
    assert read == messages
