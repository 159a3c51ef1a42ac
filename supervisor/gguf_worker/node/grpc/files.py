"""Values that stand in files, read again when the files change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from gguf_worker.errors import GgufWorkerError
from gguf_worker.logs import log_event

_T = TypeVar("_T")
log = logging.getLogger(__name__)


class Reread(Generic[_T]):
    """What `read` makes of files: at once, and again whenever one of them is another one than before.

    What cannot be used later (half written, expired) is logged once, and what was read before stays. Any
    thread may ask: gRPC does, for each connection.
    """

    def __init__(self, files: Sequence[Path], read: Callable[[], _T]) -> None:
        """Raises what `read` raises."""
        self._files = tuple(files)
        self._read = read
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._value = read()

    def get(self) -> _T:
        """The newest value that can be used."""
        with self._lock:
            if (stamp := self._look()) != self._stamp:
                # The stamp is older than what is read: a file that changes meanwhile is read once more.
                self._stamp = stamp
                self._read_again()
            return self._value

    def _read_again(self) -> None:
        names = ", ".join(str(file) for file in self._files)
        try:
            self._value = self._read()
        except GgufWorkerError as error:
            log_event(
                log,
                logging.ERROR,
                "files_unusable",
                f"{error.message}; what was read before stays in use",
                files=names,
                code=error.code,
            )
        else:
            log_event(log, logging.INFO, "files_reread", f"{names} changed and are in use", files=names)

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(file) for file in self._files)


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
