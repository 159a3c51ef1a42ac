"""The seam between the streams of a node and its receipts: exactly one for each work, whatever happens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gguf_worker.errors import GgufWorkerError
from gguf_worker.work import Work


class WorkSettled(GgufWorkerError):
    """Raised when a session is opened for a work whose receipt is written: what follows is another work."""

    default_code = "work_settled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What one forward took."""

    start: int
    """Rows that the session held before it."""
    rows: int
    tokens_sampled: int
    queue_us: int
    compute_us: int
    bytes_in: int
    bytes_out: int


class LedgerEntry(Protocol):
    """One session of a work on this node, counted."""

    async def count(self, use: Use) -> None:
        """Adds what was computed. Called before the result leaves the node, and when this returns even
        SIGKILL of the node loses nothing of it."""

    async def close(self, finish_reason: str) -> None:
        """The session is over. A reason settles the work, once for all its sessions on this node: the first
        one stands. Without a reason the work may come back within the ledger's grace, and is settled as
        `interrupted` after it. May be called again; only the first call counts."""


class Ledger(Protocol):
    """The receipts of one node."""

    async def open(self, work: Work, *, artifact: str, layers: tuple[int, int]) -> LedgerEntry:
        """Begins or goes on with a work. Raises WorkSettled."""
