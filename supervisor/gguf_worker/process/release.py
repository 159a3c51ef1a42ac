"""What a worker gave back, measured after it ended."""

from __future__ import annotations

from dataclasses import dataclass

import anyio

from gguf_worker.process.child import ChildProcess
from gguf_worker.process.exit import StopRung
from gguf_worker.protocol.messages import Bye

GROUP_DEADLINE_S = 1.0
GROUP_POLL_S = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseReport:
    """Each claim was checked with the kernel; what could not be verified is named in `unreleased`."""

    pid: int
    stop_rung: StopRung
    process_reaped: bool
    descriptors_closed: bool
    group_empty: bool
    bye: Bye | None
    """What the worker itself said it released; None where it had no time to say so."""
    unreleased: tuple[str, ...]

    @property
    def complete(self) -> bool:
        return not self.unreleased


async def measure_release(child: ChildProcess, *, stop_rung: StopRung, bye: Bye | None) -> ReleaseReport:
    """Checks what is left of an ended process, and waits a moment for what it started."""
    reaped = child.status is not None
    group_empty = reaped and await _group_empties(child)
    still_open = [d.number for d in child.descriptors if not d.verify_closed()]
    unreleased = []
    if not reaped:
        unreleased.append(f"process {child.pid} has not ended")
    elif not group_empty:
        unreleased.append(f"process group {child.pid} still has a process in it")
    if still_open:
        unreleased.append(f"descriptors {still_open} are still open")
    return ReleaseReport(
        pid=child.pid,
        stop_rung=stop_rung,
        process_reaped=reaped,
        descriptors_closed=not still_open,
        group_empty=group_empty,
        bye=bye,
        unreleased=tuple(unreleased),
    )


async def _group_empties(child: ChildProcess) -> bool:
    """What was left in the group was killed; its new parent needs a moment to reap it."""
    with anyio.move_on_after(GROUP_DEADLINE_S):
        while not child.group_is_empty():  # noqa: ASYNC110 - the kernel tells nobody of it
            await anyio.sleep(GROUP_POLL_S)
    return child.group_is_empty()
