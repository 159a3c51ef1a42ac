"""A process that is started, read line by line, and killed; it never outlives this one."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import anyio
import anyio.lowlevel

from gguf_worker.process.child import ChildProcess
from gguf_worker.process.exit import RawStatus
from gguf_worker.process.pipes import Descriptor
from gguf_worker.process.stderr import StderrRing

READ_BYTES = 65536
END_S = 30.0
"""How long a process may take to end when it is told to, before it is killed."""

_DIES_WITH_PARENT = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Becomes the command after it asked the kernel to be killed with its parent (PR_SET_PDEATHSIG)."""


def dying_with_parent(command: Sequence[str]) -> tuple[str, ...]:
    """The command, bound to the life of this process."""
    return (sys.executable, "-I", "-S", "-c", _DIES_WITH_PARENT, str(os.getpid()), *command)


class LineProcess:
    """A child whose lines are kept, of both streams. An async context manager; leaving it ends the child."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        on_line: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._command = dying_with_parent(command)
        self._environment = dict(os.environ if environment is None else environment)
        self._on_line = on_line
        self._child: ChildProcess | None = None
        self._news = anyio.Event()
        self._open_ends = 0
        self.lines: list[str] = []
        """All that it wrote, of both streams."""
        self.bytes_read = 0
        """So much it wrote, lines that have not ended included."""
        self.status: RawStatus | None = None
        """How it ended."""

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    async def __aenter__(self) -> Self:
        await anyio.lowlevel.checkpoint()
        self._child = ChildProcess.spawn(self._command, self._environment)
        for end in (self._child.stdout, self._child.stderr):
            ring = StderrRing(max_lines=1, pid=self._child.pid, on_line=self._take)
            asyncio.get_running_loop().add_reader(end.number, self._read, end, ring)
            self._open_ends += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.end(signal.SIGTERM)
        finally:
            self._destroy()

    async def wait_line(self, wanted: Callable[[str], bool], *, after: int = 0) -> str:
        """The first line from number `after` on that is wanted. Raises EOFError where it ended without."""
        while True:
            for line in self.lines[after:]:
                if wanted(line):
                    return line
            if not self._open_ends:
                raise await self._eof()
            after = len(self.lines)
            await self._news.wait()

    async def wait_written(self, n_bytes: int) -> None:
        """Returns when it has written so many more bytes. Raises EOFError where it ended before."""
        wanted = self.bytes_read + n_bytes
        while self.bytes_read < wanted:
            if not self._open_ends:
                raise await self._eof()
            await self._news.wait()

    async def _eof(self) -> EOFError:
        status = await self.wait()
        return EOFError(f"it ended ({status}); its last lines: " + " / ".join(self.lines[-5:]))

    def signal(self, number: int) -> None:
        """Sends a signal to it and to what it started in its group."""
        assert self._child is not None
        self._child.signal_group(number)

    async def wait(self) -> RawStatus:
        """Returns when it has ended and all that it wrote was read."""
        if self.status is None:
            assert self._child is not None
            await self._child.wait_for_end()
            while self._open_ends:
                await self._news.wait()
            self.status = self._child.reap()
        return self.status

    async def end(self, number: int) -> RawStatus:
        """Sends the signal and waits for its end; kills it where that takes too long."""
        if self.status is None:
            self.signal(number)
            with anyio.move_on_after(END_S, shield=True):
                return await self.wait()
            self.signal(signal.SIGKILL)
        return await self.wait()

    def _read(self, end: Descriptor, ring: StderrRing) -> None:
        try:
            data = os.read(end.number, READ_BYTES)
        except BlockingIOError:
            return
        if data:
            self.bytes_read += len(data)
            ring.feed(data)
            self._note()
            return
        self._forget(end)
        ring.finish()
        self._note()

    def _take(self, line: str) -> None:
        self.lines.append(line)
        self._on_line(line)

    def _note(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    def _forget(self, end: Descriptor) -> None:
        if asyncio.get_running_loop().remove_reader(end.number):
            self._open_ends -= 1

    def _destroy(self) -> None:
        if self._child is not None:
            for end in (self._child.stdout, self._child.stderr):
                if end.is_open:
                    self._forget(end)
            self._child.destroy()
