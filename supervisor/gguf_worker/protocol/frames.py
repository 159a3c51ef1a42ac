"""Frames: an 8-byte header and one msgpack map. No I/O.

The decoder owns the buffer that bytes are read into. A header is checked before a byte of its body is made
room for, and the buffer follows the bytes that arrived, not the length that was claimed: a lying header
costs nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgpack

from gguf_worker._schema import Buffer
from gguf_worker.errors import LocalProtocolError, RemoteProtocolError
from gguf_worker.protocol.limits import (
    DEFAULT_MAX_FRAME_BYTES,
    FLAGS,
    HEADER_BYTES,
    MAGIC,
    MAX_DEPTH,
    MAX_KEYS,
)

_HEADER: Final = struct.Struct("<2sBBI")
_BIN8, _BIN16, _BIN32 = struct.Struct(">BB"), struct.Struct(">BH"), struct.Struct(">BI")
_EMPTY_BIN: Final = _BIN8.pack(0xC4, 0)

_ONLY_STR: Final = frozenset({str})
_CONTAINERS: Final = frozenset({dict, list})

FIRST_BUFFER_BYTES: Final = 64 * 1024
RETAINED_BUFFER_BYTES: Final = 16 * 1024 * 1024
"""A buffer that grew beyond this for one frame is given back after it."""


class Frame(NamedTuple):
    """One frame: its version byte and its body as a map."""

    version: int
    body: dict[str, object]


class FrameDecoder:
    """Bytes in, frames out.

    Read into `writable()`, say how much with `received()`, then call `next_frame()` until it gives None.
    The first error sticks: every later call raises it again.
    """

    def __init__(self, *, version: int | None = None, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self.version = version
        """The version that frames must carry; None accepts any, as before `hello`."""
        self.max_frame_bytes = max_frame_bytes
        self._buffer = memoryview(bytearray(FIRST_BUFFER_BYTES))
        self._start = 0
        self._end = 0
        self._error: RemoteProtocolError | None = None

    @property
    def buffered(self) -> int:
        """Bytes that have been received and not yet given out as frames."""
        return self._end - self._start

    @property
    def capacity(self) -> int:
        """Bytes that the buffer occupies."""
        return len(self._buffer)

    def writable(self) -> memoryview:
        """Room for at least one byte; valid until the next call of any method."""
        if self._error is not None:
            raise self._error
        if self._end == len(self._buffer):
            self._make_room()
        return self._buffer[self._end :]

    def received(self, count: int) -> None:
        """`count` bytes were written to the start of `writable()`."""
        self._end += count

    def next_frame(self) -> Frame | None:
        """The next whole frame, or None where more bytes are needed."""
        if self._error is not None:
            raise self._error
        body_start = self._start + HEADER_BYTES
        if self._end < body_start:
            return None
        try:
            version, length = self._check_header()
            body_end = body_start + length
            if self._end < body_end:
                return None
            body = decode_body(self._buffer[body_start:body_end])
        except RemoteProtocolError as error:
            self._error = error
            raise
        if body_end == self._end:
            self._start = self._end = 0
        else:
            self._start = body_end
        if len(self._buffer) > RETAINED_BUFFER_BYTES:
            self._give_back()
        return Frame(version, body)

    def _check_header(self) -> tuple[int, int]:
        magic, version, flags, length = _HEADER.unpack_from(self._buffer, self._start)
        if magic != MAGIC:
            raise RemoteProtocolError(
                f"frame starts with {magic.hex()} in place of {MAGIC.hex()}: "
                "something else wrote to the protocol's pipe"
            )
        if version == 0 or (self.version is not None and version != self.version):
            raise RemoteProtocolError(
                f"frame of protocol version {version} in place of {self.version or 'at least 1'}",
                fields={"expected": str(self.version or 1), "actual": str(version)},
            )
        if flags != FLAGS:
            raise RemoteProtocolError(f"frame has flags {flags:#04x}; this version knows none")
        if length > self.max_frame_bytes:
            raise RemoteProtocolError(
                f"frame of {length} bytes is over the limit of {self.max_frame_bytes} bytes",
                fields={"bytes": str(length), "max_frame_bytes": str(self.max_frame_bytes)},
            )
        return version, length

    def _give_back(self) -> None:
        if self.buffered <= FIRST_BUFFER_BYTES:
            self._move_to(FIRST_BUFFER_BYTES)

    def _make_room(self) -> None:
        most = HEADER_BYTES + self.max_frame_bytes
        crowded = self.buffered > len(self._buffer) // 2
        self._move_to(
            max(len(self._buffer), min(2 * len(self._buffer), most)) if crowded else len(self._buffer)
        )

    def _move_to(self, capacity: int) -> None:
        """Moves what is buffered to the start of a buffer of `capacity` bytes."""
        target = self._buffer if capacity == len(self._buffer) else memoryview(bytearray(capacity))
        count = self.buffered
        target[:count] = self._buffer[self._start : self._end]
        self._buffer, self._start, self._end = target, 0, count


def decode_body(body: Buffer) -> dict[str, object]:
    """The one map that `body` holds; raises RemoteProtocolError where it is anything else."""
    try:
        value = msgpack.unpackb(
            body,
            raw=False,
            unicode_errors="surrogateescape",
            strict_map_key=False,
            object_pairs_hook=_unique_map,
        )
    except RemoteProtocolError:
        raise
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"frame's body is not one msgpack map: {error}") from error
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"frame's body is a {type(value).__name__}, not a map")
    if len(value) > MAX_KEYS:
        raise RemoteProtocolError(f"frame's map has {len(value)} keys; the limit is {MAX_KEYS}")
    if not _CONTAINERS.isdisjoint(map(type, value.values())):  # in few
        _check_depth(value)
    return value


def _unique_map(pairs: list[tuple[Any, Any]]) -> dict[str, object]:
    result: dict[str, object] = dict(pairs)
    if len(result) == len(pairs) and _ONLY_STR.issuperset(map(type, result)):
        return result
    raise _bad_keys([key for key, _ in pairs])


def _bad_keys(keys: list[Any]) -> RemoteProtocolError:
    for place, key in enumerate(keys):
        if type(key) is not str:
            return RemoteProtocolError(f"a key of type {type(key).__name__} in a map; keys are strings")
        if key in keys[:place]:
            return RemoteProtocolError(f"key {key!r} appears twice in a map")
    raise AssertionError("the keys are good")


def _check_depth(value: dict[str, object]) -> None:
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)  # type: ignore[attr-defined]
            if isinstance(item, (dict, list))
        ]
        if not level:
            return
    raise RemoteProtocolError(f"frame's map nests deeper than {MAX_DEPTH} levels")


class FrameEncoder:
    """Maps in, the buffers of frames out. One encoder per stream; `version` is set once it is agreed."""

    def __init__(self, *, version: int = 1, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self.version = version
        self.max_frame_bytes = max_frame_bytes
        self._pack = msgpack.Packer(unicode_errors="surrogateescape").pack

    def encode(
        self, values: Mapping[str, object], *, large_key: str | None = None, large: Buffer | None = None
    ) -> list[Buffer]:
        """The buffers of one frame, to be written one after the other.

        `large` is the one large binary value; it becomes the last key and is handed back as it is, so that
        `writev` sends it without a copy. Raises LocalProtocolError where a value cannot travel or the frame
        would be over the limit.
        """
        body: Buffer = b""
        try:
            if large is None:
                small = self._pack(values)
            else:
                body = large if type(large) is bytes else memoryview(large).cast("B") if len(large) else b""
                with_empty: bytes = self._pack({**values, str(large_key): b""})
                small = with_empty[: -len(_EMPTY_BIN)] + _bin_header(len(body))
        except (TypeError, ValueError, OverflowError) as error:
            raise LocalProtocolError(f"a value of {values.get('type')!r} cannot be sent: {error}") from error
        length = len(small) + len(body)
        if length > self.max_frame_bytes:
            raise LocalProtocolError(
                f"frame of {length} bytes is over the limit of {self.max_frame_bytes} bytes; "
                "send fewer rows at once",
                fields={"bytes": str(length), "max_frame_bytes": str(self.max_frame_bytes)},
            )
        head = _HEADER.pack(MAGIC, self.version, FLAGS, length) + small
        return [head, body] if body else [head]


def _bin_header(length: int) -> bytes:
    if length <= 0xFF:
        return _BIN8.pack(0xC4, length)
    if length <= 0xFFFF:
        return _BIN16.pack(0xC5, length)
    if length <= 0xFFFFFFFF:
        return _BIN32.pack(0xC6, length)
    raise OverflowError(f"{length} bytes do not fit in one value")
