"""A reliable stream of frames over messages that may be lost, doubled, late or in another order. No I/O: time
is an argument, and messages are bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gguf_worker.node.relay.chunk import Chunk, Kind, decode, encode
from gguf_worker.node.relay.ending import Ending
from gguf_worker.node.relay.incoming import FrameTooLarge, Incoming
from gguf_worker.node.relay.outgoing import Outgoing
from gguf_worker.node.relay.share import Share
from gguf_worker.protocol.limits import DEFAULT_MAX_FRAME_BYTES

_NEVER = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLimits:
    """What one link may take, in bytes."""

    chunk_bytes: int = 256 * 1024
    """Payload of one message; less where the server allows less."""
    window_bytes: int = 2 * 1024 * 1024
    """Sent and not acknowledged; and received and not read, over and above the frame that is read next."""
    first_window_bytes: int = 128 * 1024
    """The same, until the first byte came."""
    all_windows_bytes: int = 16 * 1024 * 1024
    """Of all links of one listener or dialer."""
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES

    @property
    def first_window(self) -> int:
        """What the peer is told when the link is opened."""
        return min(self.first_window_bytes, self.window_bytes)

    def new_share(self) -> Share:
        """For the links of one listener or dialer."""
        return Share(total_bytes=self.all_windows_bytes, most_bytes=self.window_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTimers:
    """When a link does something by itself, in seconds."""

    retransmit_s: float = 0.5
    """Without news of what was sent before it is sent again, at least; the way's own delay adds to it."""
    retransmit_most_s: float = 2.0
    acknowledge_s: float = 0.025
    """How long an acknowledgement waits for something that takes it along."""
    heartbeat_s: float = 2.0
    """Without having sent anything before a sign of life is sent."""
    silence_s: float = 10.0
    """Without a sign of life of the peer before the link is lost."""
    absence_s: float = 3.0
    """How long nobody may listen at the other end, by NATS's word, before the link is lost."""
    linger_s: float = 1.0
    """How long an end waits for the peer to know of it."""


class Link:
    """One end. `offer`, `take` and `finish` are for its user; `receive`, `next_message` and `due` for whoever
    carries messages: after every call of anything, it takes messages until there is none, and comes back when
    `due` says."""

    def __init__(
        self,
        *,
        epoch: int,
        peer_window: int,
        limits: LinkLimits,
        share: Share,
        timers: LinkTimers,
        now: float,
    ) -> None:
        """`peer_window` is what the peer takes at first; the share counts the link already."""
        self._epoch = epoch
        self._timers = timers
        self._share = share
        self._out = Outgoing(share=share, peer_window=peer_window)
        self._in = Incoming(
            share=share, first_window=limits.first_window, max_frame_bytes=limits.max_frame_bytes
        )
        self._ended: Ending | None = None
        self._last_word: bytes | None = None
        self._farewell = encode(Chunk(kind=Kind.RESET, epoch=epoch))
        """What whoever still believes in the link is told after its end."""
        self._closing: Ending | None = None
        self._peer_closing: tuple[int, Ending] | None = None
        self._told = (0, limits.first_window)
        """Acknowledgement and limit that the peer was told last."""
        self._heard_at = now
        self._absent_since = _NEVER
        self._said_at = now
        self._state_due = _NEVER
        self._asks = False
        self._resend_due = _NEVER
        self._close_due = _NEVER
        self._linger_end = _NEVER
        self._timed: tuple[int, float] | None = None
        """An offset and when it was sent, for the delay of the way."""
        self._newest = 0
        """Everything before was sent at least once; what is sent again is not timed."""
        self._delay: tuple[float, float] | None = None
        """Smoothed round trip and its deviation."""
        self._backoff = 1.0
        self.dropped = 0
        """Messages that were none of this link's."""

    # ---- for its user ---------------------------------------------------------------------------

    @property
    def ended(self) -> Ending | None:
        """Why nothing more comes or goes; frames that came before it can still be taken."""
        return self._ended

    @property
    def is_flushed(self) -> bool:
        """Whether every frame that was offered is on its way."""
        return self._out.is_flushed

    @property
    def has_frames(self) -> bool:
        """Whether there is a frame to take."""
        return self._in.has_frames

    @property
    def held_bytes(self) -> int:
        """Received and not taken."""
        return self._in.held_bytes

    def offer(self, frame: bytes) -> None:
        """Gives it a frame to send. The next one waits for `is_flushed`."""
        self._out.offer(frame)

    def take(self, now: float) -> bytes | None:
        """The next frame, if one is here."""
        frame = self._in.take()
        if frame is not None and self._has_much_to_tell:
            self._state_due = now
        return frame

    def finish(self, ending: Ending, now: float) -> None:
        """Ends it: the peer has `linger_s` to take what is on its way, and the ending."""
        if self._ended is None and self._closing is None:
            self._closing = ending
            self._out.cut()
            self._close_due, self._linger_end = now, now + self._timers.linger_s

    def abandon(self, ending: Ending) -> None:
        """Ends it at once, with a last message."""
        if self._ended is None:
            self._end(ending, last_word=self._farewell)

    # ---- for what carries messages --------------------------------------------------------------

    def receive(self, message: bytes, now: float) -> None:
        """Takes a message; one that is not of this link is dropped."""
        chunk = decode(message)
        if chunk is None or chunk.epoch != self._epoch:
            self.dropped += 1
            return
        if self._ended is not None:
            self._repeat_last_word(chunk)
            return
        self._heard_at, self._absent_since = now, _NEVER
        if chunk.kind is Kind.RESET:
            unknown = Ending(code="lost", message="the peer does not know this link any more", retryable=True)
            self._end(Ending.from_json(chunk.payload) if chunk.payload else unknown)
            return
        if self._out.acknowledge(chunk.acknowledged, chunk.limit):
            self._hear_progress(now)
        if not self._out.in_flight:
            self._resend_due, self._backoff = _NEVER, 1.0
        if chunk.has_gap:
            self._out.repair(chunk.offset)
        if chunk.asks:
            self._state_due = now
        if chunk.kind is Kind.DATA:
            self._receive_data(chunk, now)
        elif chunk.kind is Kind.CLOSE:
            self._peer_closing = (chunk.offset, Ending.from_json(chunk.payload))
            self._state_due = now
        self._look_for_the_end(chunk.acknowledged)

    def nobody_listens(self, now: float) -> None:
        """NATS says that a message of ours reached nobody."""
        if self._closing is not None:
            self._end(self._closing)
        elif self._absent_since == _NEVER:
            self._absent_since = now
            self._ask_at(now + self._timers.absence_s / 8)

    def came_back(self, now: float) -> None:
        """The connection to NATS is a new one: what was on its way may be lost."""
        self._backoff = 1.0
        self._resend_due = now
        self._asks, self._state_due = True, now

    def due(self) -> float:
        """When there is something to do without anything having happened."""
        if self._ended is not None:
            return _NEVER if self._last_word is None else 0.0
        return min(
            self._said_at + self._timers.heartbeat_s,
            self._state_due,
            self._resend_due,
            self._close_due,
            self.expires(),
        )

    def expires(self) -> float:
        """When it ends, if nothing is heard until then."""
        return min(
            self._heard_at + self._timers.silence_s,
            self._absent_since + self._timers.absence_s,
            self._linger_end,
        )

    def expire(self, now: float) -> None:
        """Ends it where its time is over."""
        timers = self._timers
        if self._ended is not None:
            return
        if now >= self._linger_end:
            assert self._closing is not None
            self.abandon(self._closing)
        elif now >= self._absent_since + timers.absence_s:
            self.abandon(_lost("nobody listens at the other end of the link", timers.absence_s))
        elif now >= self._heard_at + timers.silence_s:
            self.abandon(_lost("the other end of the link is silent", timers.silence_s))

    def next_message(self, now: float, chunk_bytes: int) -> bytes | None:
        """The next message to carry, with a payload of at most `chunk_bytes`; None where there is none."""
        self.expire(now)
        if self._ended is not None:
            word, self._last_word = self._last_word, None
            return word
        if now >= self._resend_due:
            self._resend(now, chunk_bytes)
        if now >= self._close_due:
            return self._say_close(now)
        if (piece := self._out.take(chunk_bytes)) is not None:
            return self._say_data(*piece, now)
        if self._out.is_blocked and self._resend_due == _NEVER:
            self._resend_due = now + self._patience()
        if now >= min(self._state_due, self._said_at + self._timers.heartbeat_s):
            return self._say_state(now)
        return None

    # ---- what comes -----------------------------------------------------------------------------

    def _receive_data(self, chunk: Chunk, now: float) -> None:
        before = self._in.received
        try:
            self._in.accept(chunk.offset, memoryview(chunk.payload))
        except FrameTooLarge as error:
            ending = Ending(code="too_large", message=f"a frame of {error} bytes is larger than was agreed")
            self._end(ending, last_word=self._reset_for(ending))
            return
        if self._in.received == before or self._in.gap_end is not None or self._has_much_to_tell:
            self._state_due = now
        else:
            self._state_due = min(self._state_due, now + self._timers.acknowledge_s)

    @property
    def _has_much_to_tell(self) -> bool:
        """Whether the peer should know soon how far this side is, or that it may send more."""
        acknowledged, limit = self._told
        much = self._share.window // 4
        return self._in.received - acknowledged >= much or self._in.limit - limit >= much

    def _hear_progress(self, now: float) -> None:
        self._backoff = 1.0
        if self._timed is not None and self._out.acknowledged >= self._timed[0]:
            self._measure(now - self._timed[1])
            self._timed = None
        self._resend_due = now + self._patience()

    def _reset_for(self, ending: Ending) -> bytes:
        return encode(Chunk(kind=Kind.RESET, epoch=self._epoch, payload=ending.to_json()))

    def _look_for_the_end(self, acknowledged: int) -> None:
        if self._ended is not None:
            return
        if self._closing is not None and acknowledged > self._out.sent:
            self._end(self._closing)
        elif self._peer_closing is not None and self._in.received >= self._peer_closing[0]:
            self._end(self._peer_closing[1], last_word=self._state_chunk())

    def _repeat_last_word(self, chunk: Chunk) -> None:
        """The peer did not hear it. A reset is never answered, nor is what says that the end is known: two
        ends would go on for ever."""
        if self._peer_closing is not None:
            if chunk.kind is Kind.CLOSE:
                self._last_word = self._state_chunk()
        elif chunk.kind is not Kind.RESET:
            self._last_word = self._farewell

    # ---- what goes ------------------------------------------------------------------------------

    def _say_data(self, offset: int, parts: list[memoryview], now: float) -> bytes:
        end = offset + sum(map(len, parts))
        if self._timed is None and end > self._newest:
            self._timed = (end, now)
        self._newest = max(self._newest, end)
        if self._resend_due == _NEVER:
            self._resend_due = now + self._patience()
        if self._in.gap_end is None and self._absent_since == _NEVER:
            self._state_due = _NEVER
        self._said_at = now
        return encode(self._chunk(Kind.DATA, offset), parts)

    def _say_state(self, now: float) -> bytes:
        self._said_at, self._state_due = now, _NEVER
        message = self._state_chunk()
        if self._absent_since != _NEVER:
            self._ask_at(now + self._timers.absence_s / 8)
        return message

    def _say_close(self, now: float) -> bytes:
        assert self._closing is not None
        self._said_at, self._close_due = now, now + self._timers.linger_s / 4
        return self._close_chunk(self._closing)

    def _close_chunk(self, ending: Ending) -> bytes:
        return encode(self._chunk(Kind.CLOSE, self._out.sent), (ending.to_json(),))

    def _state_chunk(self) -> bytes:
        gap_end = self._in.gap_end
        return encode(self._chunk(Kind.STATE, gap_end or 0, has_gap=gap_end is not None))

    def _chunk(self, kind: Kind, offset: int, *, has_gap: bool = False) -> Chunk:
        received = self._in.received
        if self._peer_closing is not None and received >= self._peer_closing[0]:
            received += 1
        self._told = (received, self._in.limit)
        asks, self._asks = self._asks, False
        return Chunk(
            kind=kind,
            epoch=self._epoch,
            offset=offset,
            acknowledged=received,
            limit=self._told[1],
            asks=asks,
            has_gap=has_gap,
        )

    # ---- time -----------------------------------------------------------------------------------

    def _resend(self, now: float, chunk_bytes: int) -> None:
        """Nothing was heard of what was sent, or of a place for more, for too long."""
        self._timed = None
        self._resend_due = _NEVER
        if self._out.in_flight:
            self._out.probe(chunk_bytes)
        elif self._out.is_blocked:
            self._asks, self._state_due = True, now
        else:
            return
        self._backoff *= 2
        self._resend_due = now + self._patience()

    def _patience(self) -> float:
        timers = self._timers
        way = 0.0 if self._delay is None else self._delay[0] + 4 * self._delay[1]
        longest = max(timers.retransmit_most_s, 2 * way)
        return min(longest, max(timers.retransmit_s, way) * self._backoff)

    def _measure(self, round_trip_s: float) -> None:
        if self._delay is None:
            self._delay = (round_trip_s, round_trip_s / 2)
            return
        mean, deviation = self._delay
        deviation += (abs(round_trip_s - mean) - deviation) / 4
        self._delay = (mean + (round_trip_s - mean) / 8, deviation)

    def _ask_at(self, moment: float) -> None:
        self._asks, self._state_due = True, min(self._state_due, moment)

    def _end(self, ending: Ending, *, last_word: bytes | None = None) -> None:
        self._ended, self._last_word = ending, last_word
        self._farewell = last_word or self._farewell


def _lost(what: str, seconds: float) -> Ending:
    return Ending(code="lost", message=f"{what} for {seconds:g} s", retryable=True)
