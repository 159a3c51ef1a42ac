"""Blocks of logits by name, kept in an unnamed file: a run can be larger than memory."""

from __future__ import annotations

import tempfile
from types import TracebackType
from typing import Self

from gguf_worker._schema import Buffer
from gguf_worker.errors import GgufWorkerError

Key = tuple[str, int, int]
"""(how it was computed, number of the sequence, position of the block's first row)."""


class Recording:
    """A context manager; the file is gone when it is left, or when the process ends in any other way."""

    def __init__(self, folder: str | None = None) -> None:
        """`folder` None: the system's folder for temporary files."""
        self._folder = folder or tempfile.gettempdir()
        # Unbuffered: a block that found no room must not be tried again when the file is closed.
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 (this is a context manager)
        self._places: dict[Key, tuple[int, int]] = {}
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __contains__(self, key: Key) -> bool:
        return key in self._places

    @property
    def keys(self) -> tuple[Key, ...]:
        """In the order in which the blocks came."""
        return tuple(self._places)

    def put(self, key: Key, block: Buffer) -> None:
        """Keeps a block. Raises GgufWorkerError, code `no_space`, where it cannot be written."""
        rest = memoryview(block).cast("B")
        try:
            self._file.seek(self._size)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise GgufWorkerError(
                f"the unsplit model's logits, {self._size + len(block)} bytes by now, cannot be kept in "
                f"{self._folder}: {error.strerror}; set TMPDIR to a folder with more room, or compare fewer "
                "rows",
                code="no_space",
                retryable=True,
            ) from error
        self._places[key] = (self._size, len(block))
        self._size += len(block)

    def get(self, key: Key, offset: int = 0, size: int | None = None) -> bytes:
        """`size` bytes of a block from `offset` on; None: all that follow. Raises KeyError."""
        start, length = self._places[key]
        self._file.seek(start + offset)
        return self._file.read(length - offset if size is None else size)
