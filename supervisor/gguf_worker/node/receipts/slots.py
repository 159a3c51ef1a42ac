"""Works that go on: one slot each in a small file beside the ledger, overwritten with every count.

A write is one call of the operating system into a page that is there already. It survives SIGKILL; a loss
of power it survives once `sync` returned. The file is locked for as long as it is open, so that a ledger has
one writer.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path

from gguf_worker.node.receipts.errors import LedgerError, LedgerLocked, corrupt, newer, system_error, vanished

SLOT_BYTES = 1024
"""A slot lies in one page, and a page is written as a whole."""

VERSION = 1

_MAGIC = b"gguf-worker open works\n"
_FIRST = struct.Struct(f"<{len(_MAGIC)}sIH")
"""Magic, version and length of the holder's name, which follows: slot 0."""
_HEAD = struct.Struct("<HI")
"""Length and CRC-32 of the payload, which follows; the length of a free slot is 0."""

MOST_BYTES = SLOT_BYTES - _HEAD.size
"""Of one payload."""

_GROWTH = 64
"""Slots that are added at a time, so that a full disk is met before anything is computed."""


class Slots:
    """Payloads by number. Raises LedgerError for whatever the file system does not do."""

    def __init__(self, path: Path, holder: str) -> None:
        """Opens or makes the file. Raises LedgerLocked, LedgerCorrupt and LedgerVersion."""
        self._path = path
        self._free: list[int] = []
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise system_error(path, error) from error
        try:
            self._lock()
            self._size = os.fstat(self._file).st_size // SLOT_BYTES
            self._check()
            self._write(0, _FIRST.pack(_MAGIC, VERSION, len(holder.encode())) + holder.encode())
        except BaseException:
            os.close(self._file)
            raise

    def read(self) -> Iterator[tuple[int, bytes | None]]:
        """Every slot that an earlier holder left in use, and its payload; None for one that is damaged."""
        for slot in range(1, self._size):
            stored = os.pread(self._file, SLOT_BYTES, slot * SLOT_BYTES)
            length, crc = _HEAD.unpack_from(stored)
            if length:
                payload = stored[_HEAD.size : _HEAD.size + length]
                yield slot, payload if len(payload) == length and zlib.crc32(payload) == crc else None

    def retain(self, kept: Collection[int]) -> None:
        """Frees every other slot."""
        self._size, self._free = max(kept, default=0) + 1, []
        try:
            os.ftruncate(self._file, self._size * SLOT_BYTES)
        except OSError as error:
            raise system_error(self._path, error) from error
        for slot in range(1, self._size):
            if slot not in kept:
                self.free(slot)

    def take(self) -> int:
        """A slot that is free, with its place on the disk."""
        if os.fstat(self._file).st_nlink == 0:
            raise vanished(self._path)
        if not self._free:
            self._write(self._size, bytes(_GROWTH * SLOT_BYTES))
            self._free = list(range(self._size + _GROWTH - 1, self._size - 1, -1))
            self._size += _GROWTH
        return self._free.pop()

    def write(self, slot: int, payload: bytes) -> None:
        """Replaces a slot's payload by one of at most `MOST_BYTES`."""
        if os.fstat(self._file).st_nlink == 0:
            raise vanished(self._path)
        self._write(slot, _HEAD.pack(len(payload), zlib.crc32(payload)) + payload)

    def free(self, slot: int) -> None:
        """Gives a slot back."""
        self._write(slot, bytes(_HEAD.size))
        self._free.append(slot)

    def sync(self) -> None:
        """Waits until everything written is on the disk."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise system_error(self._path, error) from error

    def close(self) -> None:
        """Lets another process have it."""
        os.close(self._file)

    def _write(self, slot: int, stored: bytes) -> None:
        try:
            written = os.pwrite(self._file, stored, slot * SLOT_BYTES)
        except OSError as error:
            raise system_error(self._path, error) from error
        if written != len(stored):
            raise LedgerError(
                f"ledger {self._path}: the disk is full (free some space)",
                retryable=True,
                fields={"path": str(self._path)},
            )

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = self._holder()
            raise LedgerLocked(
                f"ledger {self._path.with_suffix('')} is in use by {holder} (end it, or give --ledger "
                "another path)",
                retryable=True,
                fields={"path": str(self._path), "holder": holder},
            ) from error
        except OSError as error:
            raise system_error(self._path, error) from error

    def _holder(self) -> str:
        first = os.pread(self._file, SLOT_BYTES, 0)
        if len(first) < _FIRST.size:
            return "a process that starts just now"
        return first[_FIRST.size :][: _FIRST.unpack_from(first)[2]].decode(errors="replace")

    def _check(self) -> None:
        first = os.pread(self._file, SLOT_BYTES, 0)
        if not first:
            self._write(0, bytes(SLOT_BYTES))
            self._size = 1
            return
        magic, version, _ = _FIRST.unpack(first[: _FIRST.size].ljust(_FIRST.size, b"\0"))
        if magic != _MAGIC and any(first):
            raise corrupt(self._path, "it begins with other bytes")
        if version > VERSION:
            raise newer(self._path, version, VERSION)
