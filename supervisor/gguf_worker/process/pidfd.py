"""Linux pidfds: a descriptor that becomes readable when one certain process ends, and what it still knows
then."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import sys

from gguf_worker.process.death import decode_wait_status
from gguf_worker.process.exit import RawStatus

# struct pidfd_info of linux/pidfd.h, first version: mask, cgroup id, 11 x u32 ids, exit code.
_INFO = struct.Struct("<QQ11Ii")
_INFO_BYTES = 64
_PIDFD_GET_INFO = (3 << 30) | (_INFO_BYTES << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT = 1 << 3

_REAPED_WITHIN_MS = 50


def open_pidfd(pid: int) -> int | None:
    """A pidfd of our child `pid`; None where the system has none, or somebody reaped the child already."""
    if sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def exit_status_from_pidfd(pidfd: int) -> RawStatus | None:
    """What the kernel kept of a process that somebody else reaped (since Linux 6.15); None where it has
    nothing.

    The descriptor tells of the end a moment before the kernel has put the status away, where it reaps by
    itself because SIGCHLD is ignored; when that is done it hangs up.
    """
    reaped = select.poll()
    reaped.register(pidfd, 0)
    reaped.poll(_REAPED_WITHIN_MS)
    request = bytearray(_INFO_BYTES)
    struct.pack_into("<Q", request, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, request)
    except OSError:
        return None
    mask, *_, wait_status = _INFO.unpack_from(request)
    if not mask & _PIDFD_INFO_EXIT:
        return None
    return decode_wait_status(wait_status, stolen=True)
