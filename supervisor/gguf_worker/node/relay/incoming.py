"""The half of a link that receives: pieces of a stream in any order, frames in the right one."""

from __future__ import annotations

from collections import deque

from gguf_worker.node.relay.outgoing import PREFIX
from gguf_worker.node.relay.share import Share

FRAME_OVERHEAD = 64
"""What a frame that waits to be read takes beside its bytes, so that empty ones are not free."""
SHORT_BYTES = 1024
"""A piece below it is copied: kept as it came, it would take many times its length."""
MOST_EARLY = 2048
"""Pieces before their time, however short they are."""


class FrameTooLarge(Exception):
    """Raised when the peer begins a frame that is larger than was agreed."""


class Incoming:
    """Holds at most one frame that is being put together, or read next, and a window of what follows."""

    def __init__(self, *, share: Share, first_window: int, max_frame_bytes: int) -> None:
        self._share = share
        self._max_frame_bytes = max_frame_bytes
        self._early: dict[int, memoryview] = {}
        self._early_bytes = 0
        self._prefix = bytearray()
        self._parts: list[memoryview | bytearray] = []
        self._assembled = 0
        self._missing = 0
        self._ready: deque[bytes] = deque()
        self._ready_bytes = 0
        self._limit = first_window
        self.received = 0
        """Everything before is here."""

    @property
    def limit(self) -> int:
        """The peer may send up to here; never less than it was. A link that was not used yet has little, so
        that many of them are no burden."""
        if self.received == 0:
            return self._limit
        waiting = self._ready_bytes + self._assembled if self._ready else 0
        self._limit = max(self._limit, self.received - waiting + self._share.window)
        return self._limit

    @property
    def gap_end(self) -> int | None:
        """Where the first piece begins that came before its time."""
        return min(self._early) if self._early else None

    @property
    def has_frames(self) -> bool:
        return bool(self._ready)

    @property
    def held_bytes(self) -> int:
        """What is here and was not taken."""
        return self._ready_bytes + self._assembled + self._early_bytes

    def accept(self, offset: int, piece: memoryview) -> None:
        """Takes a piece of the stream; one that is here already, or past the limit, changes nothing. Raises
        FrameTooLarge."""
        end = offset + len(piece)
        if end <= self.received or end > self.limit:
            return
        if offset > self.received:
            self._keep_early(offset, piece)
            return
        self._append(piece[self.received - offset :])
        for start in sorted(self._early):
            if start > self.received:
                break
            early = self._early.pop(start)
            self._early_bytes -= len(early)
            self._append(early[self.received - start :])

    def take(self) -> bytes | None:
        """The next frame."""
        if not self._ready:
            return None
        frame = self._ready.popleft()
        self._ready_bytes -= len(frame) + FRAME_OVERHEAD
        return frame

    def _keep_early(self, offset: int, piece: memoryview) -> None:
        # A piece that was cut anew may overlap others; together they never take more than a window.
        known = self._early.get(offset, b"")
        if not known and len(self._early) == MOST_EARLY:
            return
        if len(known) < len(piece) and self._early_bytes + len(piece) <= self._share.most_bytes:
            self._early[offset] = piece
            self._early_bytes += len(piece) - len(known)

    def _append(self, piece: memoryview) -> None:
        self.received += len(piece)
        while piece:
            piece = self._extend_frame(piece) if self._missing else self._extend_prefix(piece)

    def _extend_prefix(self, piece: memoryview) -> memoryview:
        needed = PREFIX.size - len(self._prefix)
        self._prefix += piece[:needed]
        if len(self._prefix) == PREFIX.size:
            (self._missing,) = PREFIX.unpack(self._prefix)
            self._prefix.clear()
            if self._missing > self._max_frame_bytes:
                raise FrameTooLarge(self._missing)
            if self._missing == 0:
                self._finish_frame()
        return piece[needed:]

    def _extend_frame(self, piece: memoryview) -> memoryview:
        part = piece[: self._missing]
        self._keep_part(part)
        self._assembled += len(part)
        self._missing -= len(part)
        if self._missing == 0:
            self._finish_frame()
        return piece[len(part) :]

    def _keep_part(self, part: memoryview) -> None:
        if len(part) >= SHORT_BYTES:
            self._parts.append(part)
        elif self._parts and isinstance(last := self._parts[-1], bytearray):
            last += part
        else:
            self._parts.append(bytearray(part))

    def _finish_frame(self) -> None:
        frame = b"".join(self._parts)
        self._parts.clear()
        self._assembled = 0
        self._ready.append(frame)
        self._ready_bytes += len(frame) + FRAME_OVERHEAD
