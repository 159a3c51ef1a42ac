"""What a worker gave back, measured after it ended."""

from __future__ import annotations

from dataclasses import dataclass

import anyio
import psutil

from gguf_worker.process import survivors
from gguf_worker.process.child import ChildProcess
from gguf_worker.process.exit import StopRung
from gguf_worker.protocol.messages import Bye

SURVIVORS_DEADLINE_S = 1.0
SURVIVORS_POLL_S = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseReport:
    """Each claim was checked with the kernel; what could not be verified is named in `unreleased`.

    A worker of which anything is unreleased is not started again: what it holds would be missing.
    """

    pid: int
    stop_rung: StopRung
    process_reaped: bool
    descriptors_closed: bool
    """All that this process had of it."""
    group_empty: bool
    """No living process is left in its process group."""
    survivors: tuple[int, ...]
    """Processes that it had started, in whatever group, and that could not be ended. One that left its
    session and dropped its environment as well is not seen."""
    shared_memory: tuple[str, ...]
    """Named shared memory that it was seen to hold and that is still there."""
    resident_before_bytes: int
    """Resident memory of the process when it was told to stop; where it ended by itself, when it had become
    ready, or had said hello. 0 where it never did."""
    resident_after_bytes: int
    """Of whatever is left of it and of all that it started: 0 once every process has ended."""
    bye: Bye | None
    """What the worker itself said it released; None where it had no time to say so."""
    unreleased: tuple[str, ...]

    @property
    def complete(self) -> bool:
        return not self.unreleased


async def measure_release(
    child: ChildProcess, *, stop_rung: StopRung, bye: Bye | None, resident_before_bytes: int = 0
) -> ReleaseReport:
    """Ends what the process started and left, wherever it is, and checks what is left of it then."""
    reaped = child.status is not None
    remains = await _end_survivors(child) if reaped else _look(child)
    still_open = [d.number for d in child.descriptors if not d.verify_closed()]
    others = tuple(process.pid for process in remains.living if process.pid != child.pid)
    shared_memory = tuple(child.shared_memory.left()) if reaped else ()
    unreleased = []
    if not reaped:
        unreleased.append(f"process {child.pid} has not ended")
    elif remains.unseen is None and not remains.group_empty:
        unreleased.append(f"process group {child.pid} still has a process in it")
    if remains.unseen is not None:
        unreleased.append(f"nobody can look for what it started: {remains.unseen}")
    if others:
        unreleased.append(f"processes {list(others)}, which it started, have not ended")
    if still_open:
        unreleased.append(f"descriptors {still_open} are still open")
    if shared_memory:
        unreleased.append(f"shared memory is still there: {', '.join(shared_memory)}")
    return ReleaseReport(
        pid=child.pid,
        stop_rung=stop_rung,
        process_reaped=reaped,
        descriptors_closed=not still_open,
        group_empty=remains.group_empty,
        survivors=others,
        shared_memory=shared_memory,
        resident_before_bytes=resident_before_bytes,
        resident_after_bytes=survivors.resident_bytes(remains.living),
        bye=bye,
        unreleased=tuple(unreleased),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Remains:
    """What one look found of a worker and of all that it started."""

    living: list[psutil.Process]
    group_empty: bool
    unseen: str | None = None
    """Why nobody could look."""


def _look(child: ChildProcess) -> _Remains:
    try:
        living = survivors.marked(child.mark)
        return _Remains(living=living, group_empty=child.status is not None and child.group_is_empty())
    except OSError as error:
        return _Remains(living=[], group_empty=False, unseen=error.strerror)


async def _end_survivors(child: ChildProcess) -> _Remains:
    """Kills what carries the worker's mark until nothing does; a new parent needs a moment to reap it."""
    remains = _look(child)
    with anyio.move_on_after(SURVIVORS_DEADLINE_S):
        while remains.living or not remains.group_empty:
            survivors.kill(remains.living)
            await anyio.sleep(SURVIVORS_POLL_S)
            remains = _look(child)
    return remains
