"""Whether a child has ended, and its status, taken once."""

from __future__ import annotations

import os
from typing import Protocol

from gguf_worker.process.exit import RawStatus


class Reaper(Protocol):
    """The exit status of one child process."""

    def is_ours(self) -> bool:
        """Whether the pid still names our child: running, or ended and not reaped."""

    def has_ended(self) -> bool:
        """Whether there is nothing more to wait for."""

    def take(self) -> RawStatus:
        """The status of the ended child; `stolen` when somebody else took it first."""


class PeekingReaper:
    """With waitid: an end is seen without reaping, so the pid stays ours until `take`."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def is_ours(self) -> bool:
        try:
            os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True

    def has_ended(self) -> bool:
        try:
            return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def take(self) -> RawStatus:
        try:
            found = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            return RawStatus(stolen=True)
        if found is None:
            raise RuntimeError(f"process {self._pid} has not ended and cannot be reaped")
        if found.si_code == os.CLD_EXITED:
            return RawStatus(exit_code=found.si_status)
        return RawStatus(signal=found.si_status, core_dumped=found.si_code == os.CLD_DUMPED)


class PollingReaper:
    """Without waitid (macOS before Python 3.13): looking reaps, so the status is kept from then on."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._status: RawStatus | None = None

    def is_ours(self) -> bool:
        return not self.has_ended()

    def has_ended(self) -> bool:
        if self._status is None:
            self._status = self._poll()
        return self._status is not None

    def take(self) -> RawStatus:
        if not self.has_ended() or self._status is None:
            raise RuntimeError(f"process {self._pid} has not ended and cannot be reaped")
        return self._status

    def _poll(self) -> RawStatus | None:
        try:
            pid, wait_status = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:
            return RawStatus(stolen=True)
        return decode_wait_status(wait_status) if pid else None


def decode_wait_status(wait_status: int, *, stolen: bool = False) -> RawStatus:
    """The status that `waitpid` packs into one number."""
    if os.WIFSIGNALED(wait_status):
        return RawStatus(
            signal=os.WTERMSIG(wait_status), core_dumped=os.WCOREDUMP(wait_status), stolen=stolen
        )
    return RawStatus(exit_code=os.WEXITSTATUS(wait_status), stolen=stolen)


def reaper_of(pid: int) -> Reaper:
    """The best that this system has."""
    return PeekingReaper(pid) if hasattr(os, "waitid") else PollingReaper(pid)
