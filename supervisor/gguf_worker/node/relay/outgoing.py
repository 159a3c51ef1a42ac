"""The half of a link that sends: what the peer does not have yet, and what of it goes next."""

from __future__ import annotations

import struct
from collections import deque
from typing import Final

from gguf_worker.node.relay.share import Share

PREFIX: Final = struct.Struct("<I")
"""Length of the frame that follows it in the stream."""


class Outgoing:
    """A stream of bytes, each with an offset that counts from 0; kept until the peer has it."""

    def __init__(self, *, share: Share, peer_window: int) -> None:
        self._share = share
        self._held: deque[tuple[int, memoryview]] = deque()
        self._resend: tuple[int, int] | None = None
        self._probe: tuple[int, int] | None = None
        """While a probe is out: where it ends, and up to where everything may be lost."""
        self._repaired = 0
        self.acknowledged = 0
        self.sent = 0
        """Everything before was sent at least once."""
        self.end = 0
        self._limit = peer_window

    @property
    def in_flight(self) -> int:
        """Bytes that the peer has not acknowledged."""
        return self.sent - self.acknowledged

    @property
    def is_flushed(self) -> bool:
        """Whether everything was sent at least once."""
        return self.sent == self.end

    @property
    def is_blocked(self) -> bool:
        """Whether there is something to send and no place for it."""
        return self.end > self.sent and self._room() == 0

    def offer(self, frame: bytes) -> None:
        """Appends a frame to the stream."""
        self._hold(PREFIX.pack(len(frame)))
        if frame:
            self._hold(frame)

    def cut(self) -> None:
        """Forgets what was never sent."""
        self.end = self.sent

    def acknowledge(self, acknowledged: int, limit: int) -> bool:
        """The peer has everything before `acknowledged`, and takes up to `limit`; whether it has more than
        was known. What makes no sense, and what is older than what is known, changes nothing."""
        self._limit = max(self._limit, limit)
        if not self.acknowledged < acknowledged <= self.sent:
            return False
        self.acknowledged = acknowledged
        while self._held and self._held[0][0] + len(self._held[0][1]) <= acknowledged:
            self._held.popleft()
        self._judge_probe()
        return True

    def probe(self, chunk_bytes: int) -> None:
        """Sends the oldest piece again: nothing was heard of it for too long. What the peer has after it
        tells whether the rest is lost or late."""
        end = min(self.sent, self.acknowledged + chunk_bytes)
        self._resend, self._probe = (self.acknowledged, end), (end, self.sent)
        self._repaired = 0

    def repair(self, gap_end: int) -> None:
        """The peer lacks everything up to there, and has something after it: sends it again, once."""
        end = min(gap_end, self.sent)
        start = max(self.acknowledged, self._repaired)
        if start < end:
            self._resend, self._probe = (start, end), None
            self._repaired = end

    def take(self, chunk_bytes: int) -> tuple[int, list[memoryview]] | None:
        """The next piece to be sent, and its offset; None where nothing may be sent now."""
        if self._resend is not None:
            start, stop = max(self._resend[0], self.acknowledged), self._resend[1]
            end = min(stop, start + chunk_bytes)
            self._resend = (end, stop) if end < stop else None
            if start < end:
                return start, self._slices(start, end)
        start = self.sent
        self.sent += min(chunk_bytes, self.end - start, self._room())
        return (start, self._slices(start, self.sent)) if start < self.sent else None

    def _room(self) -> int:
        return max(0, min(self._limit, self.acknowledged + self._share.window) - self.sent)

    def _hold(self, data: bytes) -> None:
        self._held.append((self.end, memoryview(data)))
        self.end += len(data)

    def _judge_probe(self) -> None:
        """Where the peer now has the probe and nothing after it, the rest is lost too: NATS keeps order, so
        it would have come before the probe. Where it has more, it was only late."""
        if self._probe is None or self.acknowledged < self._probe[0]:
            return
        probe_end, lost_end = self._probe
        self._probe = None
        if self.acknowledged == probe_end < lost_end:
            self._resend = (probe_end, lost_end)

    def _slices(self, start: int, end: int) -> list[memoryview]:
        """The bytes of the range, in parts. Looks from the end, where new bytes are."""
        slices: list[memoryview] = []
        for offset, data in reversed(self._held):
            if offset < end:
                slices.append(data[max(0, start - offset) : end - offset])
            if offset <= start:
                break
        slices.reverse()
        return slices
