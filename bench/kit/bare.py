"""A bare pipe pair: a child that does nothing but read so many bytes and write so many, over and over."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Self

from gguf_worker.process.child import ChildProcess
from gguf_worker.testing.process import dying_with_parent

CHILD = Path(__file__).with_name("bare_child.py")


class BarePipe:
    """A context manager. The pipes are made as a worker's are, with the same capacity; both ends block, and
    neither allocates or looks at anything. What it takes is what the kernel takes, and one `readv` or
    `writev` of Python for each piece that fits into the pipe."""

    def __init__(self, request_bytes: int, answer_bytes: int) -> None:
        """Of each exchange; both at least 1."""
        self._request = memoryview(bytes(request_bytes))
        self._answer = memoryview(bytearray(answer_bytes))
        self._child: ChildProcess

    def __enter__(self) -> Self:
        sizes = (str(len(self._request)), str(len(self._answer)))
        command = dying_with_parent([sys.executable, "-I", "-S", str(CHILD), *sizes])
        self._child = ChildProcess.spawn(command, os.environ)
        for end in (self._child.stdin, self._child.stdout):
            os.set_blocking(end.number, True)
        self.exchange()  # it has started then
        return self

    def __exit__(self, *_: object) -> None:
        self._child.destroy()

    def exchange(self) -> float:
        """Sends the request's bytes and takes the answer's; gives the seconds. Nothing else may run
        meanwhile: it blocks."""
        began = time.perf_counter()
        write_all(self._child.stdin.number, self._request)
        read_all(self._child.stdout.number, self._answer)
        return time.perf_counter() - began


def write_all(number: int, data: memoryview) -> None:
    """Raises BrokenPipeError where nobody reads any more."""
    while data:
        data = data[os.writev(number, [data]) :]


def read_all(number: int, into: memoryview) -> None:
    """Fills the buffer. Raises EOFError at the end of the stream."""
    while into:
        count = os.readv(number, [into])
        if count == 0:
            raise EOFError(f"the stream ended {len(into)} bytes before the end of an answer")
        into = into[count:]
