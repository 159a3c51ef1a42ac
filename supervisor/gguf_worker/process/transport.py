"""Moves bytes between non-blocking pipes and buffers that we own: readiness, then `readv` and `writev`."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import anyio

from gguf_worker._schema import Buffer
from gguf_worker.process.pipes import Descriptor


async def read_while(descriptor: Descriptor, on_ready: Callable[[], bool]) -> None:
    """Calls `on_ready` each time there is something to read, until it is False; what it raises is raised
    here.

    The descriptor stays registered with the event loop and is read from the loop's own callback:
    registering anew for each read, and waking a task for it, was measured to double the round trip of a
    small frame. Other callbacks get their turn between two calls, however much a worker writes.
    """
    loop = asyncio.get_running_loop()
    finished: asyncio.Future[None] = loop.create_future()

    def ready() -> None:
        try:
            if on_ready():
                return
        except BaseException as error:
            _settle(finished, error)
        else:
            _settle(finished, None)
        loop.remove_reader(descriptor.number)

    loop.add_reader(descriptor.number, ready)
    try:
        await finished
    finally:
        loop.remove_reader(descriptor.number)


def _settle(finished: asyncio.Future[None], error: BaseException | None) -> None:
    if finished.done():
        return
    if error is None:
        finished.set_result(None)
    else:
        finished.set_exception(error)


def read_now(descriptor: Descriptor, buffer: memoryview) -> int | None:
    """Reads once into `buffer`: the count, 0 at the end of the stream, None when there is nothing now."""
    try:
        return os.readv(descriptor.number, [buffer])
    except BlockingIOError:
        return None


@dataclass(slots=True, eq=False)
class Ticket:
    """One frame on its way out: the part that is not written yet."""

    remaining: deque[memoryview]
    started: bool = False

    @property
    def written(self) -> bool:
        return not self.remaining

    def detach(self) -> None:
        """Copies what is left, so that the sender's memory is free again."""
        self.remaining = deque(memoryview(bytes(part)) for part in self.remaining)


def _queued(buffers: Sequence[Buffer]) -> Ticket:
    return Ticket(deque(memoryview(buffer) for buffer in buffers))


_WRITTEN = Ticket(deque(), started=True)
"""Of every frame that went at once."""


@dataclass(slots=True, kw_only=True)
class FrameWriter:
    """Writes whole frames in the order in which they were posted.

    `post` never waits: it writes what the pipe takes at once and leaves the rest to `run`. Only this object
    writes, so frames are never interleaved and a sender that is cancelled cannot leave half a frame in the
    stream.
    """

    descriptor: Descriptor
    on_broken: Callable[[], None]
    """Called once when the worker has closed its end."""
    _queue: deque[Ticket] = field(default_factory=deque)
    _wanted: anyio.Event = field(default_factory=anyio.Event)
    _broken: bool = False

    def post(self, buffers: Sequence[Buffer]) -> Ticket:
        """Sends one frame; a frame for a worker that is gone is dropped, its death tells the sender."""
        if self._broken or not self.descriptor.is_open:
            return _queued(buffers)
        count = 0 if self._queue else self._write(buffers)
        if count == sum(map(len, buffers)):
            return _WRITTEN  # as almost always
        ticket = _queued(buffers)
        if not self._broken:
            self._queue.append(ticket)
            self._advance(ticket, count)
            self._wanted.set()
        return ticket

    def withdraw(self, ticket: Ticket) -> bool:
        """Takes back a frame of which nothing was written; otherwise it will be written to its end."""
        if ticket.started:
            ticket.detach()
            return False
        if ticket in self._queue:
            self._queue.remove(ticket)
        return True

    async def run(self) -> None:
        """Writes what `post` could not, until cancelled or broken."""
        while not self._broken:
            if not self._queue:
                self._wanted = anyio.Event()
                await self._wanted.wait()
            try:
                await anyio.wait_writable(self.descriptor.number)
            except anyio.ClosedResourceError:
                return
            self._write_some()

    def close(self) -> None:
        """Gives the worker its end of file."""
        self._queue.clear()
        self.descriptor.close()

    def _write_some(self) -> None:
        """Writes until the pipe is full or nothing is left."""
        while self._queue and self.descriptor.is_open:
            ticket = self._queue[0]
            count = self._write(ticket.remaining)
            if not count:
                return
            self._advance(ticket, count)

    def _write(self, buffers: Sequence[Buffer]) -> int:
        """Writes once; gives how much went."""
        try:
            return os.writev(self.descriptor.number, buffers)
        except BlockingIOError:
            return 0
        except (BrokenPipeError, ConnectionResetError):
            self._broken = True
            self._queue.clear()
            self.on_broken()
            return 0

    def _advance(self, ticket: Ticket, count: int) -> None:
        """`count` bytes of the first frame in the queue are written."""
        ticket.started = ticket.started or count > 0
        while count:
            part = ticket.remaining[0]
            if count < len(part):
                ticket.remaining[0] = part[count:]
                return
            count -= len(part)
            ticket.remaining.popleft()
        if ticket.written:
            self._queue.popleft()
