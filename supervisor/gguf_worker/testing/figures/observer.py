"""Says when a process ended, as a third one sees it, which neither it nor its supervisor can hold up."""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType
from typing import Self

_PROGRAM = """
import os, select, sys, time
for line in sys.stdin:
    pidfd = os.pidfd_open(int(line))
    print("watching", flush=True)
    select.select([pidfd], [], [])
    print(time.perf_counter(), flush=True)
    os.close(pidfd)
"""


class Observer:
    """A context manager around the third process (Linux, where `time.perf_counter` is one clock for all)."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:
            self._process.kill()

    def watch(self, pid: int) -> None:
        """Returns when the end of this process will be seen."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{pid}\n")
        self._process.stdin.flush()
        self._read()

    def ended_at(self) -> float:
        """When it was seen to end, by `time.perf_counter`; waits for it."""
        return float(self._read())

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()
