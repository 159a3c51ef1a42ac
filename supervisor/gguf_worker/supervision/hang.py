"""Tells a worker that hangs from one that is slow: by its progress, not by the time that something takes."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import anyio

from gguf_worker.errors import GgufWorkerError
from gguf_worker.protocol.connection import ConnectionState
from gguf_worker.protocol.messages import GetHealth, Request
from gguf_worker.supervision.channel import Channel, Pending
from gguf_worker.supervision.settings import WorkerSettings

LOOKS_PER_DEADLINE = 4


@dataclass(slots=True, kw_only=True)
class Stillness:
    """For how long nothing has moved, as seen in looks from time to time. The clock is an argument, in
    seconds. No I/O.

    A look counts for no more than `longest_look_s`, however long ago the last one was: a supervisor that was
    itself stopped, starved or suspended blames nobody for that time.
    """

    longest_look_s: float
    still_s: float = 0.0
    """Seconds without progress."""
    _looked_at: float = -math.inf
    _mark: object = None

    def look(self, mark: object, now: float) -> None:
        """Takes a reading; another than the last one is progress, and None that there is nothing to do."""
        elapsed = min(now - self._looked_at, self.longest_look_s)
        moved = mark is None or mark != self._mark
        self.still_s = 0.0 if moved else self.still_s + elapsed
        self._looked_at, self._mark = now, mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Debt:
    """What a worker owes an answer to, and how long it may be still over it."""

    type: str
    has_phases: bool
    stall_s: float
    mark: tuple[object, ...]
    """Changes with every sign of progress."""


class HangWatch:
    """Looks, while a worker owes an answer, whether it gets on.

    Signs of progress are an answer, a report of progress, and another reading of the worker's health: bytes
    of its phase, or its counter of graph nodes. For a worker that owes nothing but answers of its control
    thread, which are due at once, any frame is one.
    """

    def __init__(self, channel: Channel, settings: WorkerSettings) -> None:
        self._channel = channel
        self._settings = settings
        self._interval_s = (
            min(settings.load_stall_timeout_s, settings.compute_stall_timeout_s) / LOOKS_PER_DEADLINE
        )
        self._asked: Pending | None = None

    async def run(self) -> str:
        """Returns when the worker hangs, with what it hangs over."""
        stillness = Stillness(longest_look_s=self._interval_s)
        while True:
            await anyio.sleep(self._interval_s)
            if self._channel.has_ended or self._channel.connection.state is not ConnectionState.OPEN:
                continue  # a stop, or the end of the stream, has deadlines of its own
            if self._asked is not None and self._asked.done:
                self._asked = None
            debt = self._debt()
            stillness.look(None if debt is None else debt.mark, time.monotonic())
            if debt is not None and stillness.still_s >= debt.stall_s:
                return self._describe(debt)
            if debt is not None and self._asked is None:
                self._asked = self._ask()

    def _ask(self) -> Pending | None:
        """Asks how the worker is, without waiting; None where no more requests fit."""
        try:
            return self._channel.submit(GetHealth())
        except GgufWorkerError:
            return None

    def _debt(self) -> Debt | None:
        owed = self._channel.connection.owed
        if self._asked is not None:
            owed.pop(self._asked.id, None)
        if not owed:
            return None
        request = min(owed.values(), key=_importance)
        slow = request.has_progress
        return Debt(
            type=request.type,
            has_phases=slow,
            stall_s=self._settings.load_stall_timeout_s if slow else self._settings.compute_stall_timeout_s,
            mark=(self._channel.n_frames,) if request.answered_by_control_thread else self._mark(),
        )

    def _mark(self) -> tuple[object, ...]:
        health = self._channel.health
        reading = None if health is None else (health.phase, health.phase_done, health.progress)
        return self._channel.n_moves, reading

    def _describe(self, debt: Debt) -> str:
        health = self._channel.health
        phase = self._channel.phase or (health.phase if health is not None else "")
        where = f" in {phase}" if phase and debt.has_phases else ""
        also = "" if self._asked is None else ", and answered nothing else"
        return f"{debt.type} made no progress{where} for {debt.stall_s:g} s{also}"


def _importance(request: Request) -> int:
    """Loads first: while one runs nothing else can; then what computes, then what is answered at once."""
    return 0 if request.has_progress else 2 if request.answered_by_control_thread else 1
