"""A ledger in a folder of its own. Every test here must leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from gguf_worker.node.receipts.ledger import SqliteLedger
from gguf_worker.node.receipts.query import ReceiptQuery, open_ledger
from gguf_worker_v1 import receipt_pb2
from ledgers import GRACE_S, MakeLedger, Stored
from manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of the ledger; nothing is there yet."""
    return tmp_path / "state" / "receipts.sqlite"


@pytest.fixture
def make_ledger(path: Path, clock: ManualClock) -> MakeLedger:
    """A ledger that is not entered yet."""

    def make(node: str = "node-a", **options: object) -> SqliteLedger:
        settings = {"grace_s": GRACE_S, "clock": clock, "wall_clock": clock.now, **options}
        return SqliteLedger(path, node=node, **settings)  # type: ignore[arg-type]

    return make


@pytest.fixture
def stored(path: Path) -> Stored:
    """The receipts that are in the file now."""

    def read() -> list[receipt_pb2.Receipt]:
        with open_ledger(path) as book:
            return book.select(ReceiptQuery())

    return read
