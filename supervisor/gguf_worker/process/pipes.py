"""Pipes between this process and a worker, and descriptors that know whether they are closed."""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass

import anyio

PIPE_BYTES = 1024 * 1024
"""Wanted capacity of a pipe; what the system grants may be less."""


@dataclass(slots=True)
class Descriptor:
    """One descriptor that we own, and the file that it stood for when we got it."""

    number: int
    _device: int = -1
    _inode: int = -1
    _open: bool = True

    def __post_init__(self) -> None:
        status = os.fstat(self.number)
        self._device, self._inode = status.st_dev, status.st_ino

    @property
    def is_open(self) -> bool:
        return self._open

    def close(self) -> None:
        """Closes it once; a task that waits for it is woken first."""
        if self._open:
            # Outside an event loop, or on one that is shutting down, nobody can be waiting.
            with contextlib.suppress(Exception):
                anyio.notify_closing(self.number)
            self.close_quietly()

    def close_quietly(self) -> None:
        """Closes it once, and tells nobody in this process."""
        if self._open:
            self._open = False
            os.close(self.number)

    def verify_closed(self) -> bool:
        """Asks the kernel: the number is free, or stands for another file by now."""
        try:
            status = os.fstat(self.number)
        except OSError:
            return True
        return (status.st_dev, status.st_ino) != (self._device, self._inode)


def open_pipe() -> tuple[int, int]:
    """A pipe (read end, write end), close-on-exec, as large as the system grants up to PIPE_BYTES."""
    read_end, write_end = os.pipe()
    set_size = getattr(fcntl, "F_SETPIPE_SZ", None)
    if set_size is not None:
        # Unprivileged users have a quota of pipe pages; a small pipe is slower, not wrong.
        with contextlib.suppress(OSError):
            fcntl.fcntl(write_end, set_size, PIPE_BYTES)
    return read_end, write_end
