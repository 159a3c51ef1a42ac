"""The last lines that a worker wrote on stderr, in bounded memory."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

logger = logging.getLogger("gguf_worker.worker")

MAX_LINE_BYTES = 4096
"""A longer line is cut there; what follows on it is dropped."""


@dataclass(slots=True, kw_only=True)
class StderrRing:
    """Takes chunks of bytes and keeps the last `max_lines` lines of at most MAX_LINE_BYTES each."""

    max_lines: int
    pid: int = 0
    on_line: Callable[[str], None] | None = None
    """Offered each line as it is complete; what it raises is logged and goes no further."""
    dropped_lines: int = 0
    _lines: deque[str] = field(default_factory=deque)
    _partial: bytearray = field(default_factory=bytearray)

    def feed(self, chunk: bytes | memoryview) -> None:
        """Takes the next bytes."""
        first, *rest = bytes(chunk).split(b"\n")
        self._extend(first)
        for piece in rest:
            self._finish_line()
            self._extend(piece)

    def finish(self) -> None:
        """The stream has ended: an unfinished line counts as one."""
        if self._partial:
            self._finish_line()

    def tail(self) -> tuple[str, ...]:
        """The lines kept, oldest first."""
        return tuple(self._lines)

    def _extend(self, piece: bytes) -> None:
        self._partial += piece[: MAX_LINE_BYTES - len(self._partial)]

    def _finish_line(self) -> None:
        line = self._partial.decode("utf-8", "replace").rstrip("\r")
        self._partial.clear()
        self._keep(line)
        logger.debug("worker %d: %s", self.pid, line)
        if self.on_line is not None:
            try:
                self.on_line(line)
            except Exception:
                logger.exception("the callback for the worker's stderr lines failed")

    def _keep(self, line: str) -> None:
        self._lines.append(line)
        if len(self._lines) > self.max_lines:
            self._lines.popleft()
            self.dropped_lines += 1
