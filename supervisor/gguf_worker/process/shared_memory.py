"""Named shared memory that a process was seen to hold, and what is left of it (Linux; elsewhere nothing is
seen).

Memory without a name (memfd, unlinked files) lives only as long as a process that holds it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

_FOLDER = "/dev/shm/"
_MAPPED = re.compile(rb"(?m)\s(/dev/shm/[^\n]*?)(?: \(deleted\))?$")
_SYSV_TABLE = Path("/proc/sysvipc/shm")


@dataclass(slots=True)
class SharedMemoryWatch:
    """Which files of /dev/shm a process holds. It is looked at while the process lives, because nobody can
    tell from the file who made it."""

    pid: int
    _seen: dict[str, tuple[int, int]] = field(default_factory=dict)

    def look(self) -> None:
        """Notes what it has mapped or open now."""
        for name in _mapped(self.pid) | _opened(self.pid):
            file = _file(name)
            if file is not None:
                self._seen[name] = file

    def left(self) -> list[str]:
        """What is still there, as names for people. Only after the process has ended."""
        files = [name for name, file in self._seen.items() if _file(name) == file]
        return files + [f"System V segment {number}" for number in _segments_of(self.pid)]


def _file(name: str) -> tuple[int, int] | None:
    """What a name stands for: device and inode."""
    try:
        status = os.stat(name)  # noqa: PTH116 - names from the kernel, which may hold anything
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _mapped(pid: int) -> set[str]:
    try:
        maps = Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return set()
    return {os.fsdecode(name) for name in _MAPPED.findall(maps)}


def _opened(pid: int) -> set[str]:
    names = set()
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                target = os.readlink(entry.path)  # noqa: PTH115
                if target.startswith(_FOLDER):
                    names.add(target)
    except OSError:
        pass  # it ended meanwhile, or is not ours to look into
    return names


def _segments_of(pid: int) -> list[str]:
    """System V segments that the process made; the kernel keeps their maker's number."""
    try:
        _, *rows = _SYSV_TABLE.read_text().splitlines()
    except (OSError, ValueError):
        return []
    return [columns[1] for columns in map(str.split, rows) if columns[4] == str(pid)]
