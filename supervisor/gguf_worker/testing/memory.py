"""Want of memory, made for one process: in a control group where the machine lets us make one."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

_V1 = Path("/sys/fs/cgroup/memory")
_V2 = Path("/sys/fs/cgroup")

_GREEDY = """
import os, sys
with open(os.path.join(sys.argv[1], "cgroup.procs"), "w") as file:
    file.write(str(os.getpid()))
file = os.memfd_create("greedy")  # which is in no process's resident memory, so it is not to be blamed
while True:
    os.write(file, bytes(1 << 20))
"""
_FIRST_TO_GO = "1000"
"""Of oom_score_adj: more than any process gets for the memory that it has."""


class NoMemoryGroup(Exception):
    """Raised where no memory group can be made; the text says why."""


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """A control group with this limit; processes are moved into it by writing to its `cgroup.procs`. It is
    removed when the last of them has ended. Raises NoMemoryGroup."""
    parent, limit = _parent_and_limit()
    group = parent / f"gguf-worker-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(limit_bytes))
    except OSError as error:
        raise NoMemoryGroup(f"no memory group can be made here: {error.strerror}") from error
    try:
        yield group
    finally:
        _remove(group)


def why_no_memory_group() -> str:
    """Why a memory group cannot be made here; empty where it can."""
    try:
        with memory_group(64 << 20):
            return ""
    except NoMemoryGroup as reason:
        return str(reason)


@contextmanager
def greedy_neighbour(group: Path, victim: int) -> Iterator[None]:
    """Moves a process into the group, and starts another one there that takes all its memory: the kernel
    kills the first one, whatever that is doing."""
    (group / "cgroup.procs").write_text(str(victim))
    Path(f"/proc/{victim}/oom_score_adj").write_text(_FIRST_TO_GO)
    with subprocess.Popen(
        [sys.executable, "-S", "-c", _GREEDY, str(group)], stderr=subprocess.DEVNULL
    ) as neighbour:
        try:
            yield
        finally:
            neighbour.kill()


CAN_LIMIT_OTHERS = hasattr(resource, "prlimit")
"""Whether the system lets one process limit another (Linux)."""


def limit_address_space(pid: int, more_bytes: int) -> None:
    """Lets a process take `more_bytes` more than it has: further allocations are refused."""
    size = psutil.Process(pid).memory_info().vms + more_bytes
    resource.prlimit(pid, resource.RLIMIT_AS, (size, size))


def _parent_and_limit() -> tuple[Path, str]:
    """Where a group can be made, and the name of its limit."""
    if (_V1 / "memory.limit_in_bytes").exists():
        return _V1, "memory.limit_in_bytes"
    controllers = _V2 / "cgroup.subtree_control"
    if controllers.exists() and "memory" in controllers.read_text():
        return _V2, "memory.max"
    raise NoMemoryGroup("no memory controller whose groups could be made here")


def _remove(group: Path) -> None:
    """The kernel takes a moment to let go of a group whose last process has just ended."""
    for _ in range(200):
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.01)
        else:
            return
