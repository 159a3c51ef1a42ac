"""The states of a supervised worker and what moves it from one to another. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class WorkerState(StrEnum):
    """Where a supervised worker is."""

    STARTING = "starting"
    """Its process is started and has not said hello."""
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    """It was asked to stop and is on its way."""
    STOPPED = "stopped"
    BACKOFF = "backoff"
    """It died; whether and when another process takes its place is being decided."""
    FAILED = "failed"
    """Given up, until someone resets it."""


class Event(StrEnum):
    """What happens to a supervised worker."""

    HELLO = "hello"
    LOADED = "loaded"
    REFUSED = "refused"
    """It will not become better by trying again: a rejected load, a wrong identity, no executable."""
    DIED = "died"
    STOP = "stop"
    ENDED = "ended"
    """The process that was asked to stop has ended."""
    RETRY = "retry"
    GIVE_UP = "give_up"
    RESET = "reset"
    """Someone who mended the cause wants it tried again."""


_S, _E = WorkerState, Event

TRANSITIONS: dict[tuple[WorkerState, Event], WorkerState] = {
    (_S.STARTING, _E.HELLO): _S.LOADING,
    (_S.LOADING, _E.LOADED): _S.READY,
    (_S.STARTING, _E.REFUSED): _S.FAILED,
    (_S.LOADING, _E.REFUSED): _S.FAILED,
    (_S.STARTING, _E.DIED): _S.BACKOFF,
    (_S.LOADING, _E.DIED): _S.BACKOFF,
    (_S.READY, _E.DIED): _S.BACKOFF,
    (_S.STARTING, _E.STOP): _S.DRAINING,
    (_S.LOADING, _E.STOP): _S.DRAINING,
    (_S.READY, _E.STOP): _S.DRAINING,
    (_S.DRAINING, _E.ENDED): _S.STOPPED,
    (_S.BACKOFF, _E.STOP): _S.STOPPED,
    (_S.BACKOFF, _E.RETRY): _S.STARTING,
    (_S.BACKOFF, _E.GIVE_UP): _S.FAILED,
    (_S.FAILED, _E.RESET): _S.STARTING,
}


class LifecycleError(RuntimeError):
    """Raised when something happens to a worker that cannot happen in its state: a mistake in this
    package."""


@dataclass(slots=True)
class Lifecycle:
    """The state of one supervised worker."""

    state: WorkerState = WorkerState.STARTING
    on_change: Callable[[WorkerState, WorkerState], None] | None = None
    """Told of each move, from where to where."""

    def can(self, event: Event) -> bool:
        """Whether the table has such a step from here."""
        return (self.state, event) in TRANSITIONS

    def apply(self, event: Event) -> WorkerState:
        """Moves on; raises LifecycleError where the table has no such step."""
        before = self.state
        try:
            self.state = TRANSITIONS[before, event]
        except KeyError:
            raise LifecycleError(
                f"{event.value!r} cannot happen to a worker that is {before.value}"
            ) from None
        if self.on_change is not None:
            self.on_change(before, self.state)
        return self.state
