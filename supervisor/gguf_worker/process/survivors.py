"""Processes that a worker started, wherever they have gone since.

A process group holds what the worker started, unless it asked for a group or session of its own. The
environment goes along with every fork and exec, so each worker gets a variable with a value of its own. Only
what asked for a session of its own and dropped its environment as well is not found.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psutil

VARIABLE = "GGUF_WORKER_LIFE"


def new_mark() -> str:
    """A value of VARIABLE that no other worker has."""
    return uuid4().hex


def marked(mark: str) -> list[psutil.Process]:
    """The living processes that have this mark; those of other users cannot be seen.

    Raises OSError where nobody can look (no descriptor is free): that is not the same as to find none.
    """
    found = []
    for pid in _candidates(mark):
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.environ().get(VARIABLE) == mark:
                found.append(process)
    return found


def _candidates(mark: str) -> Iterator[int]:
    """The processes that are worth a closer look. The whole machine is looked over while other work waits,
    so where it can be done with one read of each process, it is."""
    if sys.platform != "linux":
        yield from psutil.pids()
        return
    needle = f"{VARIABLE}={mark}".encode()
    with os.scandir("/proc") as entries:
        for entry in entries:
            with contextlib.suppress(ProcessLookupError, FileNotFoundError, PermissionError):
                if entry.name.isdigit() and needle in Path(entry.path, "environ").read_bytes():
                    yield int(entry.name)


def kill(processes: list[psutil.Process]) -> None:
    """Ends them; psutil makes sure that a number still means the process that was found."""
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            process.kill()


def resident_bytes(processes: list[psutil.Process]) -> int:
    """Resident memory of them all; pages that they share count once for each."""
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            total += process.memory_info().rss
    return total
