"""What can be wrong with a ledger, said with its file and the remedy."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

from gguf_worker.errors import GgufWorkerError


class LedgerError(GgufWorkerError):
    """Raised when the ledger cannot be read or written now. The node computes for no new work until it
    can."""

    default_code = "ledger"


class LedgerLocked(LedgerError):
    """Raised when another process writes this ledger; fields name it."""

    default_code = "ledger_locked"


class LedgerVersion(LedgerError):
    """Raised when a newer release made the ledger; fields hold both numbers."""

    default_code = "ledger_version"


class LedgerCorrupt(LedgerError):
    """Raised when a file is no ledger, or a damaged one. It is left as it is."""

    default_code = "ledger_corrupt"


_REMEDIES_BY_ERRNO = {
    errno.ENOSPC: ("the disk is full", "free some space"),
    errno.EDQUOT: ("the disk quota is used up", "free some space"),
    errno.EROFS: ("the file system is read-only", "mount it for writing or choose another --ledger"),
    errno.EACCES: ("it may not be written", "check the permissions of the file and its folder"),
    errno.ENOENT: ("there is no such file", "check the path"),
}

_REMEDIES_BY_CODE = {
    sqlite3.SQLITE_FULL: ("the disk is full", "free some space"),
    sqlite3.SQLITE_READONLY: ("it may not be written", "check the permissions of the file and its folder"),
    sqlite3.SQLITE_BUSY: ("another program holds it locked", "end that program"),
    sqlite3.SQLITE_LOCKED: ("another program holds it locked", "end that program"),
    sqlite3.SQLITE_CANTOPEN: ("it cannot be opened", "check the path and the permissions of its folder"),
    sqlite3.SQLITE_IOERR: ("the disk failed", "look into the system's log"),
}

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def system_error(path: Path, error: OSError) -> LedgerError:
    """What the operating system said of one of the ledger's files."""
    what, remedy = _REMEDIES_BY_ERRNO.get(
        error.errno or 0, (error.strerror or str(error), "check the path and the disk")
    )
    return LedgerError(f"ledger {path}: {what} ({remedy})", retryable=True, fields={"path": str(path)})


def database_error(path: Path, error: sqlite3.Error) -> LedgerError:
    """What SQLite said of the ledger."""
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if code in _DAMAGED:
        return corrupt(path, str(error))
    what, remedy = _REMEDIES_BY_CODE.get(code, (str(error), "check the file"))
    return LedgerError(f"ledger {path}: {what} ({remedy})", retryable=True, fields={"path": str(path)})


def corrupt(path: Path, reason: str) -> LedgerCorrupt:
    """A damaged file, or one that something else made."""
    return LedgerCorrupt(
        f"ledger {path} is damaged or no ledger: {reason} (move it away, or restore it from a backup)",
        fields={"path": str(path)},
    )


def vanished(path: Path) -> LedgerError:
    """A file that was deleted or replaced while it was in use."""
    return LedgerError(
        f"ledger {path} was deleted or replaced while the node ran (put it back and restart the node)",
        retryable=True,
        fields={"path": str(path)},
    )


def newer(path: Path, found: int, known: int) -> LedgerVersion:
    """A file of a later release."""
    return LedgerVersion(
        f"ledger {path} has version {found}, and this release writes version {known} (use the newer release, "
        "or another --ledger)",
        fields={"path": str(path), "found": str(found), "known": str(known)},
    )
