"""Evidence that the kernel killed a process for want of memory (Linux; elsewhere there is none)."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gguf_worker.process.exit import OomEvidence

_COUNTER = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)
_KMSG_RECORD_BYTES = 8192
_KMSG_MAX_RECORDS = 65536
_LOOKS = 5
_BETWEEN_LOOKS_S = 0.002


@dataclass(frozen=True, slots=True)
class OomWatch:
    """The machine's count of out-of-memory kills when a process began, and when that was."""

    kills_before: int | None
    started_us: int

    @classmethod
    def begin(cls) -> OomWatch:
        """Takes the count now. It needs no privilege."""
        return cls(kills_before=_count_kills(), started_us=time.monotonic_ns() // 1000)

    def evidence(self, pid: int) -> OomEvidence:
        """What speaks for the kernel having killed `pid` since then."""
        kills = _count_kills()
        if kills is None or self.kills_before is None or kills <= self.kills_before:
            return OomEvidence.NONE
        # The log has a clock of its own, which the monotonic one is steered away from over the days.
        named = _is_named_soon(pid, self.started_us - self.started_us // 1000)
        return OomEvidence.PROVEN if named else OomEvidence.PROBABLE


def _is_named_soon(pid: int, since_us: int) -> bool:
    """The kernel sends its SIGKILL a moment before it writes of it in the log."""
    for _ in range(_LOOKS):
        if names_killed(_kernel_log(), pid, since_us):
            return True
        time.sleep(_BETWEEN_LOOKS_S)
    return False


def names_killed(records: Iterable[bytes], pid: int, since_us: int) -> bool:
    """Whether a record of the kernel's log (`priority,sequence,microseconds,flags;text`) since then says
    so."""
    killed = re.compile(rb"\bKilled process %d\b" % pid)
    return any(killed.search(text) for moment, text in map(_parse, records) if moment >= since_us)


def _parse(record: bytes) -> tuple[int, bytes]:
    head, _, text = record.partition(b";")
    columns = head.split(b",")
    return (int(columns[2]) if len(columns) > 2 and columns[2].isdigit() else 0), text


def _count_kills() -> int | None:
    if sys.platform != "linux":
        return None
    try:
        found = _COUNTER.search(Path("/proc/vmstat").read_bytes())
    except OSError:
        return None
    return int(found.group(1)) if found else None


def _kernel_log() -> list[bytes]:
    """The records of the kernel's log; empty where it may not be read."""
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    records: list[bytes] = []
    try:
        while len(records) < _KMSG_MAX_RECORDS:
            records.append(os.read(log, _KMSG_RECORD_BYTES))
    except OSError:
        pass  # EAGAIN ends the log; a record that was overwritten meanwhile ends our reading of it
    finally:
        os.close(log)
    return records
