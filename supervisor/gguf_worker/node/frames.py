"""Stage frames as bytes. No I/O.

Rows are written behind everything else of a frame, straight from where they lie: protobuf merges what comes
twice of one message, so a frame may say `forward` once with all that is small and once more with the rows.
To any reader of protobuf it is a frame like any other; we read such rows where they lie as well, because two
copies of 8 MiB take longer than all the rest of a hop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from gguf_worker._schema import Buffer
from gguf_worker.errors import RemoteProtocolError
from gguf_worker_v1 import stage_pb2

LARGE_BYTES: Final = 64 * 1024
"""Of smaller frames protobuf copies the rows faster than we find them."""

MOST_FIELDS: Final = 8
"""Of a frame that we look for rows in. One whose rows come last has a number and twice a body before them; a
long walk through millions of fields would hold up everybody else."""

_VARINT, _LENGTH_DELIMITED = 0, 2


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame that was read."""

    message: stage_pb2.StageFrame
    """All but the rows, which it may hold or not."""
    rows: Buffer | None
    """Of a forward or a result; None where it has none."""


def encode(frame: stage_pb2.StageFrame, field: str = "", rows: Buffer | None = None) -> bytes:
    """The bytes of a frame, with `rows` as the body's field of that name."""
    if rows is None:
        return frame.SerializeToString()
    body = frame.WhichOneof("body")
    assert body is not None, "rows belong to a body"
    outer, inner = _TAGS[body, field]
    size = memoryview(rows).nbytes
    head = inner + _varint(size)
    return b"".join((frame.SerializeToString(), outer, _varint(len(head) + size), head, rows))


def decode(raw: bytes) -> Frame:
    """The frame of these bytes; of a newer version it may have no body that is known here. Raises
    RemoteProtocolError where they are none."""
    tail = _find_rows(raw) if len(raw) >= LARGE_BYTES else None
    message = stage_pb2.StageFrame()
    try:
        message.ParseFromString(raw if tail is None else raw[: tail.start])
    except DecodeError:
        raise RemoteProtocolError(f"{len(raw)} bytes that are no stage frame of gguf_worker.v1") from None
    if tail is None:
        return Frame(message, _rows_inside(message))
    getattr(message, tail.body).SetInParent()
    return Frame(message, memoryview(raw)[tail.rows :])


# ---- rows at the end of a frame -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tail:
    """The last field of a frame, where it is a body with nothing but rows."""

    start: int
    body: str
    rows: int
    """Where they begin."""


def _find_rows(raw: bytes) -> _Tail | None:
    """None also for what is no frame: protobuf says so, and does not have to be imitated."""
    try:
        at = 0
        for _ in range(MOST_FIELDS):
            start = at
            tag, at = _read_varint(raw, at)
            size, at = _read_varint(raw, at)
            if tag & 7 == _LENGTH_DELIMITED:
                if at + size == len(raw):
                    return _tail(raw, start, tag, at)
                at += size
            elif tag & 7 != _VARINT:
                return None
    except IndexError:
        return None
    return None


def _tail(raw: bytes, start: int, tag: int, at: int) -> _Tail | None:
    inner, at = _read_varint(raw, at)
    size, at = _read_varint(raw, at)
    body = _BODIES.get((tag, inner))
    return _Tail(start, body, at) if body is not None and at + size == len(raw) else None


def _rows_inside(message: stage_pb2.StageFrame) -> Buffer | None:
    if message.HasField("forward"):
        return message.forward.hidden if message.forward.HasField("hidden") else None
    if message.HasField("result"):
        result = message.result
        for field in ("hidden", "logits", "embedding"):
            if result.HasField(field):
                rows: bytes = getattr(result, field)
                return rows
    return None


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    """A number and where it ends. Raises IndexError where it does not."""
    number = shift = 0
    while True:
        byte = raw[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > 63:
            raise IndexError


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def _tag(number: int) -> int:
    return number << 3 | _LENGTH_DELIMITED


def _tags_of(body: str, field: str) -> tuple[int, int]:
    outer = stage_pb2.StageFrame.DESCRIPTOR.fields_by_name[body]
    assert outer.message_type is not None
    return _tag(outer.number), _tag(outer.message_type.fields_by_name[field].number)


_NUMBERS: Final = {
    (body, field): _tags_of(body, field)
    for body, field in (
        ("forward", "hidden"),
        ("result", "hidden"),
        ("result", "logits"),
        ("result", "embedding"),
    )
}
_TAGS: Final = {name: (_varint(outer), _varint(inner)) for name, (outer, inner) in _NUMBERS.items()}
"""How a body with rows begins, and how the rows in it do."""
_BODIES: Final = {numbers: body for (body, _), numbers in _NUMBERS.items()}
"""The same, to be read."""
