"""Settled receipts in a SQLite file: appended once each, never changed but for the mark that they were
published."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Self
from urllib.parse import quote

from gguf_worker.node.receipts.errors import corrupt, database_error, newer, system_error, vanished
from gguf_worker_v1 import receipt_pb2

VERSION = 1
"""Of the schema, kept in SQLite's `user_version`."""

APPLICATION = 0x67777263
"""SQLite's `application_id` of a ledger: "gwrc"."""

Synchronous = Literal["normal", "full"]

FIELDS = tuple(field.name for field in receipt_pb2.Receipt.DESCRIPTOR.fields)
"""Columns, named as the receipt's fields."""

_BUSY_TIMEOUT_S = 5.0
_TEXTS = ("work_id", "node", "request_id", "account", "artifact", "layers", "finish_reason")

SCHEMA = (
    f"""CREATE TABLE receipts (
        id INTEGER PRIMARY KEY,
        {", ".join(f"{name} {'TEXT' if name in _TEXTS else 'INTEGER'} NOT NULL" for name in FIELDS)},
        published INTEGER NOT NULL DEFAULT 0,
        UNIQUE (work_id, node)
    )""",
    "CREATE INDEX receipts_by_time ON receipts (settled_at_ms)",
    "CREATE INDEX receipts_by_account ON receipts (account, settled_at_ms)",
    "CREATE INDEX receipts_to_publish ON receipts (id) WHERE NOT published",
)

INSERT = f"INSERT OR IGNORE INTO receipts ({', '.join(FIELDS)}) VALUES ({', '.join('?' for _ in FIELDS)})"


class Store:
    """A connection that writes. One thread at a time uses it. Raises LedgerError."""

    def __init__(self, path: Path, synchronous: Synchronous = "normal") -> None:
        """Opens or makes the file. Raises LedgerCorrupt and LedgerVersion."""
        self._path = path
        try:
            path.touch(mode=0o600)
            self._file = _file_id(path)
        except OSError as error:
            raise system_error(path, error) from error
        with self._translated():
            self._connection = connect(path, "rw")
        try:
            with self._translated():
                self._prepare(synchronous)
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def check(self) -> None:
        """Reads the whole file. Raises LedgerCorrupt where something in it is damaged."""
        with self._translated():
            problem = self._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise corrupt(self._path, str(problem))

    def insert(self, receipts: Iterable[receipt_pb2.Receipt]) -> None:
        """Stores them all or none. One of a work and node that is there already is dropped."""
        rows = [to_row(receipt) for receipt in receipts]
        with self._transaction():
            self._connection.executemany(INSERT, rows)

    def finish_reason(self, work_id: str, node: str) -> str | None:
        """How a work ended; None where it is not settled."""
        with self._translated():
            row = self._connection.execute(
                "SELECT finish_reason FROM receipts WHERE work_id = ? AND node = ?", (work_id, node)
            ).fetchone()
        return None if row is None else str(row[0])

    def unpublished(self, limit: int) -> list[tuple[int, receipt_pb2.Receipt]]:
        """The oldest receipts that nobody acknowledged yet, with the numbers that `mark_published` takes."""
        with self._translated():
            rows = self._connection.execute(
                f"SELECT id, {', '.join(FIELDS)} FROM receipts WHERE NOT published ORDER BY id LIMIT ?",
                (limit,),
            ).fetchall()
        return [(row[0], from_row(row[1:])) for row in rows]

    def mark_published(self, numbers: Sequence[int]) -> None:
        """They are kept elsewhere as well."""
        with self._transaction():
            self._connection.executemany(
                "UPDATE receipts SET published = 1 WHERE id = ?", [(number,) for number in numbers]
            )

    def _prepare(self, synchronous: Synchronous) -> None:
        found = _user_version(self._connection)
        application = self._connection.execute("PRAGMA application_id").fetchone()[0]
        is_empty = self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0
        if application != APPLICATION and not is_empty:
            raise corrupt(self._path, "another program's database")
        if found > VERSION:
            raise newer(self._path, found, VERSION)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute(f"PRAGMA synchronous = {synchronous}")
        if is_empty:
            with self._transaction():
                for statement in SCHEMA:
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA application_id = {APPLICATION}")
                self._connection.execute(f"PRAGMA user_version = {VERSION}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """What is done inside happens wholly or not at all."""
        try:
            if _file_id(self._path) != self._file:
                raise vanished(self._path)
        except OSError as error:
            raise vanished(self._path) from error
        with self._translated():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise database_error(self._path, error) from error


def connect(path: Path, mode: Literal["ro", "rw"]) -> sqlite3.Connection:
    """A connection that any one thread at a time may use, with transactions only where they are written."""
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}",
        uri=True,
        timeout=_BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )


def to_row(receipt: receipt_pb2.Receipt) -> tuple[str | int, ...]:
    """The columns `FIELDS`."""
    return tuple(",".join(receipt.layers) if name == "layers" else getattr(receipt, name) for name in FIELDS)


def from_row(row: Sequence[object]) -> receipt_pb2.Receipt:
    """The receipt of the columns `FIELDS`."""
    values = dict(zip(FIELDS, row, strict=True))
    layers = str(values.pop("layers"))
    return receipt_pb2.Receipt(**values, layers=layers.split(",") if layers else ())  # type: ignore[arg-type]


def _user_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _file_id(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino
