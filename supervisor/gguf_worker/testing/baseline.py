"""What this process holds (children, descriptors, threads, shared memory, resident memory), and whether it
came back to that."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

GROWING_POOLS = frozenset({"event_engine"})
"""Threads of libraries' pools: gRPC adds some when the machine is busy, and keeps them for a while."""
_SHARED_MEMORY = Path("/dev/shm")


class LeftBehind(AssertionError):
    """Raised where something is there that was not there before; `left` names each thing."""

    def __init__(self, left: tuple[str, ...]) -> None:
        super().__init__("left behind: " + "; ".join(left))
        self.left = left


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """One look at this process."""

    children: Mapping[int, str]
    """Command names by pid, of all descendants and zombies too."""
    descriptors: Mapping[int, str]
    """What each open descriptor stands for."""
    threads: Mapping[int, str]
    """Names by native id, without those of `GROWING_POOLS`."""
    shared_memory: frozenset[str]
    """Files of /dev/shm, of anybody."""
    resident_bytes: int

    @classmethod
    def now(cls) -> Self:
        """Looks."""
        process = psutil.Process()
        return cls(
            children=_children(process),
            descriptors=_descriptors(),
            threads=_threads(process),
            shared_memory=_shared_memory(),
            resident_bytes=process.memory_info().rss,
        )

    def left_since(self, before: Footprint) -> tuple[str, ...]:
        """What is here that was not there before, in words for people; memory is left out."""
        return (
            *(f"process {pid} ({name})" for pid, name in self.children.items() if pid not in before.children),
            *(
                f"descriptor {number} ({what})"
                for number, what in self.descriptors.items()
                if before.descriptors.get(number) != what
            ),
            *(
                f"thread {number} {name}"
                for number, name in self.threads.items()
                if number not in before.threads
            ),
            *(
                f"shared memory {name}"
                for name in sorted(self.shared_memory - before.shared_memory)
                if not _is_used_elsewhere(name)
            ),
        )


class Baseline:
    """A context manager that fails with LeftBehind where its body leaves anything behind.

    Put it around a supervisor's whole life: what is released is released when the supervisor was left. A body
    that raises is not looked at; its own error counts.
    """

    def __init__(self, *, resident_growth_bytes: int | None = None) -> None:
        """`resident_growth_bytes` is how much resident memory may grow; None does not look at it, because one
        body says little: an allocator keeps what it was given back."""
        self._resident_growth_bytes = resident_growth_bytes
        self._before: Footprint

    def __enter__(self) -> Self:
        self._before = Footprint.now()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and (left := self.left()):
            raise LeftBehind(left)

    def left(self) -> tuple[str, ...]:
        """What is here now that was not there when the context was entered, and that somebody refers to."""
        if self._left():
            gc.collect()
        return self._left()

    def _left(self) -> tuple[str, ...]:
        now = Footprint.now()
        grown = now.resident_bytes - self._before.resident_bytes
        allowed = self._resident_growth_bytes
        memory = () if allowed is None or grown <= allowed else (f"{grown} bytes of resident memory",)
        return now.left_since(self._before) + memory


def _children(process: psutil.Process) -> dict[int, str]:
    found = {}
    for child in process.children(recursive=True):
        try:
            found[child.pid] = child.name()
        except psutil.Error:
            continue  # it ended while we looked
    return found


def _descriptors() -> dict[int, str]:
    proc = Path("/proc/self/fd")
    found = {}
    for entry in (proc if proc.is_dir() else Path("/dev/fd")).iterdir():
        try:
            found[int(entry.name)] = str(entry.readlink())
        except OSError:
            continue  # the descriptor that listed the folder
    return found


def _threads(process: psutil.Process) -> dict[int, str]:
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    try:
        found = {thread.id: names.get(thread.id) or _kernel_name(thread.id) for thread in process.threads()}
        return {number: name for number, name in found.items() if name not in GROWING_POOLS}
    except psutil.AccessDenied:  # macOS gives the threads of a process to its debugger only
        return {number: name for number, name in names.items() if number is not None}


def _kernel_name(thread: int) -> str:
    """What a thread that Python did not start calls itself; empty where nothing says it."""
    try:
        return Path(f"/proc/self/task/{thread}/comm").read_text().strip()
    except OSError:
        return ""


def _shared_memory() -> frozenset[str]:
    try:
        with os.scandir(_SHARED_MEMORY) as entries:
            return frozenset(entry.name for entry in entries if entry.is_file())
    except OSError:
        return frozenset()


def _is_used_elsewhere(name: str) -> bool:
    """Whether another living process has the file open or mapped: then it is that one's, not ours."""
    path = str(_SHARED_MEMORY / name)
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            if any(mapped.path == path for mapped in process.memory_maps()):
                return True
            if any(opened.path == path for opened in process.open_files()):
                return True
        except (psutil.Error, OSError):
            continue
    return False
