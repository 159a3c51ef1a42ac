"""Two links and what lies between them, with a clock of its own: no network, no waiting."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gguf_worker.node.relay.link import Link, LinkLimits, LinkTimers

LIMITS = LinkLimits(chunk_bytes=64, window_bytes=512, max_frame_bytes=4096)
TIMERS = LinkTimers()
EPOCH = 7

Fate = Sequence[float]
"""Delays of the copies of one message, in seconds; none where it is lost."""


@dataclass
class Side:
    """One end: sends its frames one after the other and keeps what it gets."""

    link: Link
    to_send: list[bytes] = field(default_factory=list)
    received: list[bytes] = field(default_factory=list)
    reads: bool = True
    most_held: int = 0

    def use(self, now: float) -> None:
        """What a user of the link would do now."""
        while self.to_send and self.link.ended is None and self.link.is_flushed:
            self.link.offer(self.to_send.pop(0))
        self.most_held = max(self.most_held, self.link.held_bytes)
        while self.reads and (frame := self.link.take(now)) is not None:
            self.received.append(frame)


class Wire:
    """Carries every message as `fate(side, number)` says."""

    def __init__(
        self,
        fate: Callable[[int, int], Fate] = lambda *_: (0.001,),
        *,
        limits: LinkLimits = LIMITS,
        timers: LinkTimers = TIMERS,
        disturb: Callable[[Wire, int, int], None] = lambda *_: None,
    ) -> None:
        """`disturb` is called with a side and the number of every message that it sends."""
        self.now = 1000.0
        self.chunk_bytes = limits.chunk_bytes
        self._fate = fate
        self._disturb = disturb
        self._messages: list[tuple[float, int, int, bytes]] = []
        self._count = [0, 0]
        self.sides = [
            Side(
                Link(
                    epoch=EPOCH,
                    peer_window=limits.window_bytes,
                    limits=limits,
                    share=limits.new_share(),
                    timers=timers,
                    now=self.now,
                )
            )
            for _ in range(2)
        ]

    @property
    def carried(self) -> int:
        """Messages that were given to the wire."""
        return sum(self._count)

    def inject(self, side: int, message: bytes) -> None:
        """A message for a side from nobody knows where."""
        self.sides[side].link.receive(message, self.now)

    def settle(self) -> None:
        """Both sides do what they can do now."""
        for index, side in enumerate(self.sides):
            while True:
                side.use(self.now)
                message = side.link.next_message(self.now, self.chunk_bytes)
                if message is None:
                    break
                self._send(index, message)

    def run(self, until: Callable[[], bool], *, most_s: float = 600.0) -> None:
        """Lets time pass until something is so, or there is nothing more to come."""
        end = self.now + most_s
        self.settle()
        while not until() and self.now < end:
            moments = [side.link.due() for side in self.sides]
            if self._messages:
                moments.append(self._messages[0][0])
            moment = min(moments)
            if moment > end:
                break
            self.now = max(self.now, moment)
            while self._messages and self._messages[0][0] <= self.now:
                _, _, side, message = heapq.heappop(self._messages)
                self.sides[side].link.receive(message, self.now)
                self.settle()
            self.settle()

    def _send(self, side: int, message: bytes) -> None:
        number = self._count[side]
        self._count[side] += 1
        self._disturb(self, side, number)
        for copy, delay in enumerate(self._fate(side, number)):
            heapq.heappush(self._messages, (self.now + delay, number * 8 + copy, 1 - side, message))
