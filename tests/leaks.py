"""Whether a test left a child process or a descriptor behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil


def children() -> set[int]:
    """The pids of our children, zombies included."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def descriptors() -> dict[int, str]:
    """Our open descriptors and what they stand for."""
    proc = Path("/proc/self/fd")
    folder = proc if proc.is_dir() else Path("/dev/fd")
    found = {}
    for entry in folder.iterdir():
        try:
            found[int(entry.name)] = str(entry.readlink())
        except OSError:
            continue  # the descriptor that listed the folder
    return found


@contextmanager
def nothing_left() -> Iterator[None]:
    """Fails where the body leaves a child or a descriptor that was not there before."""
    children_before, descriptors_before = children(), descriptors()
    yield
    left = children() - children_before
    assert not left, f"processes {left} were left behind"
    new = {n: what for n, what in descriptors().items() if descriptors_before.get(n) != what}
    assert not new, f"descriptors {new} were left behind"
