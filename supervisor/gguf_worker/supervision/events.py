"""What happens to a supervised worker, as a stream that any number of readers follow.

The supervisor writes into bounded memory and never waits. A reader that is too slow for it is told how many
events it has missed; deaths and restarts are kept apart from lines of stderr and reports of progress, so that
a flood of these cannot push one of those out.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self, TypeAlias, TypeVar

import anyio

from gguf_worker.identity import Identity
from gguf_worker.process.exit import ExitReport
from gguf_worker.process.release import ReleaseReport
from gguf_worker.supervision.lifecycle import WorkerState

NOTABLE_KEPT = 1024
"""Events of the worker's life that are kept for readers."""
CHATTER_KEPT = 1024
"""Lines of stderr and reports of progress that are kept for readers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What every event says."""

    sequence: int
    """Rises by one with every event of a supervisor, from 1."""
    time: float
    """Seconds since 1970, UTC."""
    generation: int
    """Which process of this supervisor it is about, from 1."""
    pid: int | None
    """Of that process; None before its spawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChanged:
    """The worker moved from one state to another."""

    stamp: Stamp
    before: WorkerState
    state: WorkerState


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """A load goes on; bytes."""

    stamp: Stamp
    phase: str
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReady:
    """A worker attested what was asked; it takes requests now."""

    stamp: Stamp
    identity: Identity
    load_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEnded:
    """The process ended, on purpose or not; `exit` says how. Every request that was pending fails now."""

    stamp: Stamp
    exit: ExitReport


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReleased:
    """What the ended process left, as it was measured."""

    stamp: Stamp
    release: ReleaseReport


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartScheduled:
    """Another process will take the place of the one that died."""

    stamp: Stamp
    delay_s: float
    number: int
    """Restarts within the policy's window, this one included."""
    reason: str
    """Why the last one died, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GaveUp:
    """No other process will be started until somebody calls `reset`."""

    stamp: Stamp
    reason: str
    causes: tuple[str, ...]
    """The last failures, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StderrLine:
    """A line that the worker wrote on stderr."""

    stamp: Stamp
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsDropped:
    """This reader was too slow: so many events before the next one are gone."""

    count: int


SupervisorEvent: TypeAlias = (
    StateChanged
    | LoadProgress
    | WorkerReady
    | WorkerEnded
    | WorkerReleased
    | RestartScheduled
    | GaveUp
    | StderrLine
)
ObservedEvent: TypeAlias = SupervisorEvent | EventsDropped

EventT = TypeVar("EventT", bound=SupervisorEvent)


@dataclass(slots=True)
class EventRing:
    """The last events of one kind. Positions count from 0 over all events that were ever added."""

    kept: int
    end: int = 0
    """The position of the next event."""
    _events: deque[SupervisorEvent] = field(default_factory=deque)

    def add(self, event: SupervisorEvent) -> None:
        self._events.append(event)
        self.end += 1
        if len(self._events) > self.kept:
            self._events.popleft()

    @property
    def start(self) -> int:
        """The position of the oldest event that is kept."""
        return self.end - len(self._events)

    def at(self, position: int) -> SupervisorEvent | None:
        """The event there; None at the end."""
        return self._events[position - self.start] if position < self.end else None


class EventLog:
    """The events of one supervisor. `add` never waits and may be called by anything on the event loop."""

    def __init__(self, *, notable_kept: int = NOTABLE_KEPT, chatter_kept: int = CHATTER_KEPT) -> None:
        self._notable = EventRing(notable_kept)
        self._chatter = EventRing(chatter_kept)
        self._sequence = 0
        self._changed = anyio.Event()
        self.is_closed = False

    def stamp(self, generation: int, pid: int | None) -> Stamp:
        """The stamp of the next event."""
        self._sequence += 1
        return Stamp(sequence=self._sequence, time=time.time(), generation=generation, pid=pid)

    def add(self, event: SupervisorEvent) -> None:
        """Keeps an event and wakes the readers."""
        ring = self._chatter if isinstance(event, StderrLine | LoadProgress) else self._notable
        ring.add(event)
        self._wake()

    def close(self) -> None:
        """There will be no more events: readers end behind the last one."""
        self.is_closed = True
        self._wake()

    def reader(self, *, from_start: bool) -> EventReader:
        """A reader of what is kept and of all that follows, or of what follows only."""
        rings = (self._notable, self._chatter)
        return EventReader(self, rings, [ring.start if from_start else ring.end for ring in rings])

    async def changed(self) -> None:
        """Returns when something was added or the log was closed."""
        await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class EventReader:
    """An async iterator over events, in their order; one task at a time uses it. It ends when its supervisor
    was left. Nothing has to be closed: a reader that is dropped costs nothing."""

    def __init__(self, log: EventLog, rings: tuple[EventRing, ...], positions: list[int]) -> None:
        self._log = log
        self._rings = rings
        self._positions = positions

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ObservedEvent:
        while (event := self.next_nowait()) is None:
            if self._log.is_closed:
                raise StopAsyncIteration
            await self._log.changed()
        return event

    def next_nowait(self) -> ObservedEvent | None:
        """The next event; None where there is none yet."""
        if dropped := self._skip_what_is_gone():
            return EventsDropped(count=dropped)
        heads = [ring.at(position) for ring, position in zip(self._rings, self._positions, strict=True)]
        waiting = [(event.stamp.sequence, index) for index, event in enumerate(heads) if event is not None]
        if not waiting:
            return None
        _, index = min(waiting)
        self._positions[index] += 1
        return heads[index]

    async def wait_for(
        self, kind: type[EventT], condition: Callable[[EventT], bool] = lambda _: True
    ) -> EventT:
        """The next event of a kind that meets a condition; others are passed over.

        Raises EOFError where the supervisor was left before there was one.
        """
        async for event in self:
            if isinstance(event, kind) and condition(event):
                return event
        raise EOFError(f"the supervisor was left without a {kind.__name__}")

    def _skip_what_is_gone(self) -> int:
        dropped = 0
        for index, ring in enumerate(self._rings):
            missed = max(0, ring.start - self._positions[index])
            dropped += missed
            self._positions[index] += missed
        return dropped
