"""The stop ladder: request, end of file, SIGTERM, SIGKILL; each rung with a deadline."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

import anyio

from gguf_worker.process.child import ChildProcess
from gguf_worker.process.exit import StopRung


@dataclass(frozen=True, slots=True, kw_only=True)
class StopDeadlines:
    """How long each rung may take, in seconds, before the next one is tried."""

    request_s: float = 5.0
    eof_s: float = 2.0
    terminate_s: float = 2.0
    kill_s: float = 10.0
    """A process that dies with many dirty pages is gone only after about 85 ms per GiB."""


@dataclass(slots=True, kw_only=True)
class StopLadder:
    """Stops a process as gently as it lets us.

    `gone` is set by whoever watches the process end. `ask` sends the request and is False where that cannot
    be done; `end_input` closes the worker's stdin.
    """

    child: ChildProcess
    gone: anyio.Event
    ask: Callable[[], bool]
    end_input: Callable[[], None]
    deadlines: StopDeadlines
    rung: StopRung = StopRung.ALREADY_GONE
    """The rung that is being tried, or that worked; whoever sees the process end reads it."""

    async def descend(self) -> None:
        """Tries one rung after the other until the process is gone."""
        if self.gone.is_set():
            return
        for rung, act, seconds in self._rungs():
            if self.rung is StopRung.KILL and rung is not StopRung.KILL:
                continue  # `kill` left these out
            self.rung = rung
            if act() and await self._gone_within(seconds):
                return
        self.rung = StopRung.NONE

    def kill(self) -> None:
        """The last rung at once, before `descend` or while it waits on another one."""
        self.rung = StopRung.KILL
        self._kill()

    def _rungs(self) -> tuple[tuple[StopRung, Callable[[], bool], float], ...]:
        return (
            (StopRung.REQUEST, self.ask, self.deadlines.request_s),
            (StopRung.EOF, self._end_input, self.deadlines.eof_s),
            (StopRung.TERMINATE, self._terminate, self.deadlines.terminate_s),
            (StopRung.KILL, self._kill, self.deadlines.kill_s),
        )

    def _end_input(self) -> bool:
        self.end_input()
        return True

    def _terminate(self) -> bool:
        self.child.signal_group(signal.SIGTERM)
        # A stopped process acts on no signal but SIGKILL; SIGCONT lets it take the SIGTERM.
        self.child.signal_group(signal.SIGCONT)
        return True

    def _kill(self) -> bool:
        self.child.signal_group(signal.SIGKILL)
        return True

    async def _gone_within(self, seconds: float) -> bool:
        with anyio.move_on_after(seconds):
            await self.gone.wait()
        return self.gone.is_set()
