"""Lists and sums, while a node writes, and of receipts from elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from gguf_worker.node.receipts.errors import LedgerCorrupt, LedgerError, LedgerVersion
from gguf_worker.node.receipts.query import ReceiptQuery, book_of, open_ledger
from gguf_worker.node.receipts.store import FIELDS, VERSION, Store, from_row, to_row
from gguf_worker.work import Work
from gguf_worker_v1 import receipt_pb2
from ledgers import ARTIFACT, LAYERS, MakeLedger, receipt, use

RECEIPTS = [
    receipt("one", account="alice", rows=1, tokens_sampled=1, compute_us=10, settled_at_ms=1000),
    receipt("two", account="alice", rows=2, tokens_sampled=2, compute_us=20, settled_at_ms=2000),
    receipt("two", node="node-b", account="alice", rows=4, settled_at_ms=2000),
    receipt("three", account="bob", rows=8, finish_reason="cancelled", settled_at_ms=3000),
]


def works(query: ReceiptQuery) -> list[str]:
    with book_of(RECEIPTS) as book:
        return [f"{each.work_id} {each.node}" for each in book.select(query)]


def test_newest_come_last() -> None:
    assert works(ReceiptQuery()) == ["one node-a", "two node-a", "two node-b", "three node-a"]
    assert works(ReceiptQuery(limit=2)) == ["two node-b", "three node-a"]


def test_conditions_are_met_together() -> None:
    assert works(ReceiptQuery(work_id="two")) == ["two node-a", "two node-b"]
    assert works(ReceiptQuery(account="bob")) == ["three node-a"]
    assert works(ReceiptQuery(account="alice", node="node-b")) == ["two node-b"]
    assert works(ReceiptQuery(since_ms=2000, until_ms=3000)) == ["two node-a", "two node-b"]
    assert works(ReceiptQuery(account="nobody' OR 1=1")) == []


def test_sums_are_of_all_that_meet_the_query() -> None:
    with book_of(RECEIPTS) as book:
        alice, bob = book.sum(ReceiptQuery(limit=1), "account")
        assert (alice.value, alice.receipts, alice.rows, alice.tokens_sampled) == ("alice", 3, 7, 3)
        assert (alice.compute_us, bob.value, bob.rows) == (30, "bob", 8)
        assert [each.value for each in book.sum(ReceiptQuery(account="alice"), "node")] == [
            "node-a",
            "node-b",
        ]
        assert [each.receipts for each in book.sum(ReceiptQuery(), "finish_reason")] == [1, 3]
        assert book.sum(ReceiptQuery(account="nobody"), "artifact") == []


def test_second_receipt_of_a_work_is_dropped() -> None:
    with book_of([receipt("work", rows=1), receipt("work", rows=2)]) as book:
        assert [each.rows for each in book.select(ReceiptQuery())] == [1]


def test_every_field_is_stored() -> None:
    """A field that the protobuf gains is a column that the schema gains: then the version rises."""
    full = receipt_pb2.Receipt(layers=["0:8", "16:24"])
    for number, name in enumerate(FIELDS, start=1):
        if name != "layers":
            setattr(full, name, f"text {number}" if isinstance(getattr(full, name), str) else number << 20)
    assert from_row(to_row(full)) == full
    assert len(full.ListFields()) == 17
    assert VERSION == 1


@pytest.mark.anyio
async def test_reading_disturbs_no_writer(path: Path, make_ledger: MakeLedger) -> None:
    """And sees what is stored at the moment."""
    async with make_ledger() as ledger:
        with open_ledger(path) as book:
            for number in range(5):
                entry = await ledger.open(Work(), artifact=ARTIFACT, layers=LAYERS)
                await entry.count(use(0, 1))
                await entry.close("stop")
                await ledger.flush()
                assert len(book.select(ReceiptQuery())) == number + 1


def test_no_ledger_is_made_by_reading(path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no ledger"), open_ledger(path):
        pass
    assert not path.parent.exists()


def test_file_of_others_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("notes " * 1000)
    with pytest.raises(LedgerCorrupt), open_ledger(path):
        pass


def test_newer_ledger_is_refused(path: Path) -> None:
    path.parent.mkdir()
    with Store(path) as store:
        store._connection.execute("PRAGMA user_version = 9")
    with pytest.raises(LedgerVersion, match="version 9"), open_ledger(path):
        pass
