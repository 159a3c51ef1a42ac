"""What a relay carries in one message: a fixed header and a piece of a stream."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from gguf_worker._schema import Buffer

VERSION: Final = 1
HEADER: Final = struct.Struct("<BBBxIQQQQ")
"""Version, kind, flags, an unused byte, length of the payload, epoch, offset, acknowledged, limit."""

_ASKS: Final = 1
_HAS_GAP: Final = 2


class Kind(IntEnum):
    """What a chunk is for."""

    DATA = 1
    """A piece of the stream, at `offset`."""
    STATE = 2
    """Nothing but what every chunk says: how far this side is. Where it has a gap, `offset` is its end."""
    CLOSE = 3
    """The stream ends at `offset`; the payload says why. It takes one place after the last byte."""
    RESET = 4
    """There is no such link, or no more; the payload says why, where it is the other side's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One message."""

    kind: Kind
    epoch: int
    """Random number of the link; whatever has another one is not ours."""
    offset: int = 0
    acknowledged: int = 0
    """This side has every byte of the other's stream before this one."""
    limit: int = 0
    """The other side may send up to here."""
    asks: bool = False
    """Wants a STATE at once."""
    has_gap: bool = False
    payload: Buffer = b""


def encode(chunk: Chunk, payload: Iterable[Buffer] | None = None) -> bytes:
    """The message of a chunk, with its own payload or one in parts."""
    body = b"".join((chunk.payload,) if payload is None else payload)
    flags = (_ASKS if chunk.asks else 0) | (_HAS_GAP if chunk.has_gap else 0)
    head = HEADER.pack(
        VERSION,
        chunk.kind,
        flags,
        len(body),
        chunk.epoch,
        chunk.offset,
        chunk.acknowledged,
        chunk.limit,
    )
    return head + body


def decode(message: bytes) -> Chunk | None:
    """The chunk of a message; None where it is none of this version."""
    if len(message) < HEADER.size:
        return None
    version, kind, flags, length, epoch, offset, acknowledged, limit = HEADER.unpack_from(message)
    if version != VERSION or kind not in _KINDS or len(message) != HEADER.size + length:
        return None
    return Chunk(
        kind=Kind(kind),
        epoch=epoch,
        offset=offset,
        acknowledged=acknowledged,
        limit=limit,
        asks=bool(flags & _ASKS),
        has_gap=bool(flags & _HAS_GAP),
        payload=memoryview(message)[HEADER.size :],
    )


_KINDS = frozenset(Kind)
