"""Lists and sums receipts, of a ledger that a node may be writing or of those that a stream gave."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from gguf_worker.node.receipts.errors import LedgerError, corrupt, database_error, newer
from gguf_worker.node.receipts.store import (
    APPLICATION,
    FIELDS,
    INSERT,
    SCHEMA,
    VERSION,
    connect,
    from_row,
    to_row,
)
from gguf_worker_v1 import receipt_pb2

Group = Literal["account", "node", "artifact", "finish_reason"]
GROUPS: tuple[Group, ...] = get_args(Group)

_IN_MEMORY = Path(":memory:")
_SUMMED = ("rows", "rows_replayed", "tokens_sampled", "queue_us", "compute_us", "bytes_in", "bytes_out")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptQuery:
    """Which receipts; None leaves a field open."""

    work_id: str | None = None
    account: str | None = None
    node: str | None = None
    since_ms: int | None = None
    """Settled at this time or later."""
    until_ms: int | None = None
    """Settled before this time."""
    limit: int | None = None
    """The newest so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptSum:
    """Receipts that have one value in common, added up."""

    value: str
    receipts: int
    rows: int
    rows_replayed: int
    tokens_sampled: int
    queue_us: int
    compute_us: int
    bytes_in: int
    bytes_out: int


class ReceiptBook:
    """Receipts to look into. Raises LedgerError."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    def select(self, query: ReceiptQuery) -> list[receipt_pb2.Receipt]:
        """The oldest first."""
        where, values = _where(query)
        with _translated(self._path):
            rows = self._connection.execute(
                f"SELECT {', '.join(FIELDS)} FROM receipts {where} ORDER BY settled_at_ms DESC, id DESC "
                "LIMIT ?",
                (*values, -1 if query.limit is None else query.limit),
            ).fetchall()
        return [from_row(row) for row in reversed(rows)]

    def sum(self, query: ReceiptQuery, by: Group) -> list[ReceiptSum]:
        """Without the query's limit; by value."""
        where, values = _where(query)
        columns = ", ".join(f"sum({name}) AS {name}" for name in _SUMMED)
        with _translated(self._path):
            rows = self._connection.execute(
                f"SELECT {by}, count(*), {columns} FROM receipts {where} GROUP BY {by} ORDER BY {by}", values
            ).fetchall()
        return [
            ReceiptSum(value=row[0], receipts=row[1], **dict(zip(_SUMMED, row[2:], strict=True)))
            for row in rows
        ]


@contextmanager
def open_ledger(path: Path) -> Iterator[ReceiptBook]:
    """The receipts in a ledger, for reading only; a node may write it. Raises LedgerError, LedgerCorrupt and
    LedgerVersion."""
    if not path.is_file():
        raise LedgerError(
            f"there is no ledger {path} (give --ledger, or --tracker for the receipts of a mesh)",
            fields={"path": str(path)},
        )
    with _translated(path):
        connection = connect(path, "ro")
    try:
        with _translated(path):
            _check(connection, path)
        yield ReceiptBook(connection, path)
    finally:
        connection.close()


@contextmanager
def book_of(receipts: Iterable[receipt_pb2.Receipt]) -> Iterator[ReceiptBook]:
    """The receipts given."""
    connection = sqlite3.connect(_IN_MEMORY)
    try:
        for statement in SCHEMA:
            connection.execute(statement)
        connection.executemany(INSERT, map(to_row, receipts))
        yield ReceiptBook(connection, _IN_MEMORY)
    finally:
        connection.close()


def _where(query: ReceiptQuery) -> tuple[str, list[str | int]]:
    conditions = {
        "work_id = ?": query.work_id,
        "account = ?": query.account,
        "node = ?": query.node,
        "settled_at_ms >= ?": query.since_ms,
        "settled_at_ms < ?": query.until_ms,
    }
    given = {condition: value for condition, value in conditions.items() if value is not None}
    return f"WHERE {' AND '.join(given)}" if given else "", list(given.values())


def _check(connection: sqlite3.Connection, path: Path) -> None:
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
        raise corrupt(path, "another program's database")
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found > VERSION:
        raise newer(path, found, VERSION)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise database_error(path, error) from error
