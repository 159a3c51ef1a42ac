"""SIGTERM and Ctrl-C: the first one asks for a stop in good order, the second one for a stop at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from types import FrameType

import anyio

from gguf_worker._tasks import plain_task_group

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(slots=True)
class StopRequest:
    """Whether, and how urgently, this process was asked to stop."""

    asked: anyio.Event = field(default_factory=anyio.Event)
    urgent: anyio.Event = field(default_factory=anyio.Event)
    signal: int | None = None
    """The signal that came last."""

    def take(self, number: int) -> None:
        """One signal more."""
        self.signal = number
        if self.asked.is_set():
            self.urgent.set()
        self.asked.set()


@asynccontextmanager
async def given_up_if_asked(stop: StopRequest) -> AsyncIterator[Callable[[], None]]:
    """Cancels what is inside where a stop is asked for before the inside called what it is given: whatever
    a start waits for, a stop does not."""
    waiting = anyio.CancelScope()
    async with plain_task_group() as tasks:

        async def give_up() -> None:
            with waiting:
                await stop.asked.wait()
                tasks.cancel_scope.cancel()

        tasks.start_soon(give_up, name="a stop while starting")
        yield waiting.cancel
        waiting.cancel()


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Takes the signals while this is open; afterwards, when all is cleaned up, they are ignored. A third one
    kills this process, and with it, by their parent-death signal, its workers."""
    request = StopRequest()
    loop = asyncio.get_running_loop()

    # Not by the loop's own handlers: when the loop closes they lose their pipe first, and a signal just then
    # is complained about.
    def take(number: int, _frame: FrameType | None) -> None:
        if request.asked.is_set():
            _set_all(signal.SIG_DFL, taken)
        loop.call_soon_threadsafe(request.take, number)

    # SIGINT is ignored where nohup or a script's `&` said so.
    taken = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    _set_all(take, taken)
    try:
        yield request
    finally:
        _set_all(signal.SIG_IGN, taken)


def _set_all(
    handler: Callable[[int, FrameType | None], None] | signal.Handlers, numbers: list[signal.Signals]
) -> None:
    for number in numbers:
        signal.signal(number, handler)
