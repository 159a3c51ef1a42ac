"""The seam between the streams of a node and its receipts: exactly one for each work, whatever happens."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from gguf_worker.errors import GgufWorkerError, RequestError
from gguf_worker.logs import log_event
from gguf_worker.work import Work

log = logging.getLogger(__name__)


class WorkSettled(GgufWorkerError):
    """Raised when a session is opened for a work whose receipt is written: what follows is another work."""

    default_code = "work_settled"


class WorkConflict(GgufWorkerError):
    """Raised when a work comes a second time and is another one."""

    default_code = "work_conflict"


@contextmanager
def told_to_clients(what: str) -> Iterator[None]:
    """What a ledger says of a work goes to its client. What is wrong with the ledger itself is the node's
    own affair: it is logged, and the client hears RequestError with code `ledger`."""
    try:
        yield
    except (WorkSettled, WorkConflict, RequestError):
        raise
    except GgufWorkerError as error:
        log_event(log, logging.ERROR, "ledger_error", f"{what}: {error.message}", code=error.code)
        raise RequestError(
            f"{what}: the node cannot write receipts now; try again, or ask another node",
            code="ledger",
            retryable=True,
        ) from None


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
        """Begins or goes on with a work. Raises WorkSettled and WorkConflict."""
