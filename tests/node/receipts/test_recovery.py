"""What a process that died leaves behind."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from gguf_worker.node.ledger import WorkSettled
from gguf_worker.node.receipts.ledger import slots_path
from gguf_worker.node.receipts.open_work import OpenWork
from gguf_worker.node.receipts.query import ReceiptQuery, open_ledger
from gguf_worker.node.receipts.slots import Slots
from gguf_worker.testing import receipts as lives
from gguf_worker.work import Work
from gguf_worker_v1 import receipt_pb2
from ledgers import ARTIFACT, GRACE_S, LAYERS, MakeLedger, Stored, receipt, use
from manual_clock import ManualClock

WORKS = 100

DIES = """
import anyio, os, signal, sys
from pathlib import Path
from gguf_worker.node.receipts.ledger import SqliteLedger
from gguf_worker.work import Work
from ledgers import ARTIFACT, LAYERS, use

async def main():
    async with SqliteLedger(Path(sys.argv[1]), node="node-a") as ledger:
        for name, reason in (("open", None), ("lost", ""), ("stopped", "stop"), ("nothing", "")):
            entry = await ledger.open(Work(work_id=name), artifact=ARTIFACT, layers=LAYERS)
            if name != "nothing":
                await entry.count(use(0, 7))
            if reason is not None:
                await entry.close(reason)
        os.kill(os.getpid(), signal.SIGKILL)

anyio.run(main)
"""


@pytest.mark.anyio
async def test_next_start_goes_on_with_what_was_open(
    path: Path, make_ledger: MakeLedger, clock: ManualClock, stored: Stored, caplog: pytest.LogCaptureFixture
) -> None:
    """A route that finds its node again counts on; what ended just before the death has its reason."""
    died = await anyio.run_process([sys.executable, "-c", DIES, str(path)], env=environment(), check=False)
    assert died.returncode == -9
    async with make_ledger() as ledger:
        assert [(each.work_id, each.finish_reason, each.rows) for each in stored()] == [
            ("stopped", "stop", 7)
        ]
        assert ledger.open_works == 2
        entry = await ledger.open(Work(work_id="open").again(), artifact=ARTIFACT, layers=LAYERS)
        await entry.count(use(0, 7))
        await entry.count(use(7, 1))
        clock.advance(GRACE_S)
        await ledger.wait_stored(0)
        with pytest.raises(WorkSettled):
            await ledger.open(Work(work_id="lost"), artifact=ARTIFACT, layers=LAYERS)
        await entry.close("length")
        await ledger.flush()
        found = {each.work_id: (each.finish_reason, each.rows, each.rows_replayed) for each in stored()}
    assert found == {"open": ("length", 15, 7), "lost": ("interrupted", 7, 0), "stopped": ("stop", 7, 0)}
    assert any(getattr(record, "event", "") == "receipts_recovered" for record in caplog.records)


@pytest.mark.anyio
async def test_receipt_that_was_stored_just_before_the_death_is_not_doubled(
    path: Path, make_ledger: MakeLedger, stored: Stored
) -> None:
    """The slot is given back after the database has the receipt; a death in between leaves both."""
    async with make_ledger() as ledger:
        entry = await ledger.open(Work(work_id="work"), artifact=ARTIFACT, layers=LAYERS)
        await entry.count(use(0, 2))
        await entry.close("stop")
    (settled,) = stored()
    leave(path, settled)
    settled.finish_reason = ""
    leave(path, settled)
    async with make_ledger() as ledger:
        assert [each.finish_reason for each in stored()] == ["stop"]
        assert ledger.open_works == 0


@pytest.mark.anyio
async def test_slots_between_works_that_go_on_are_taken_again(
    path: Path, make_ledger: MakeLedger, stored: Stored
) -> None:
    """Once a process died after another, too."""
    for _ in range(3):
        leave(path, receipt("settled"), receipt("open", finish_reason=""))
        async with make_ledger() as ledger:
            assert ledger.open_works == 1
            entry = await ledger.open(Work(work_id="new"), artifact=ARTIFACT, layers=LAYERS)
            await entry.close("stop")
        assert {each.work_id for each in stored()} == {"settled", "open", "new"}
        for each in (path, slots_path(path)):
            each.unlink()


@pytest.mark.anyio
async def test_works_of_a_node_that_was_renamed_are_settled_at_once(
    path: Path, make_ledger: MakeLedger, stored: Stored
) -> None:
    leave(path, receipt("work", node="old-name", finish_reason=""))
    async with make_ledger("new-name"):
        assert [(each.node, each.finish_reason) for each in stored()] == [("old-name", "interrupted")]


@pytest.mark.anyio
async def test_damaged_slot_costs_its_own_work_only(
    path: Path, make_ledger: MakeLedger, stored: Stored, caplog: pytest.LogCaptureFixture
) -> None:
    leave(path, receipt("first"), receipt("second"))
    with slots_path(path).open("r+b") as file:
        file.seek(1024 + 20)
        file.write(b"\xff\xff")
    async with make_ledger():
        assert [each.work_id for each in stored()] == ["second"]
    assert [record.levelno for record in caplog.records if "damaged" in record.message] == [logging.ERROR]


@pytest.mark.skipif(sys.platform != "linux", reason="SIGKILL is timed for Linux")
def test_receipts_equal_the_works_whatever_was_killed(tmp_path: Path, note: Callable[[str], None]) -> None:
    """A process that is killed at random moments, again and again, until all works were begun."""
    ledger, truth = tmp_path / "receipts.sqlite", tmp_path / "truth"
    command = [sys.executable, "-m", lives.__name__, str(ledger), str(truth), str(WORKS), "1"]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    with open_ledger(ledger) as book:
        found = book.select(ReceiptQuery())
    assert lives.differences(lives.read_truth(truth), found) == []
    note(f"receipts: {WORKS} works in {int(ran.stdout)} killed processes, {len(found)} receipts as counted")


def test_harness_sees_what_is_wrong(tmp_path: Path) -> None:
    """A receipt that is missing, double, too small, of another end, or of no work."""
    truth = tmp_path / "truth"
    lines = [
        f"{name} {event}" for name in "abcd" for event in ("count? 3", "count 3", "close? stop", "close stop")
    ]
    truth.write_text("\n".join(lines))
    found = [
        receipt("b"),
        receipt("b"),
        receipt("c", rows=2),
        receipt("d", finish_reason="error"),
        receipt("e"),
    ]
    assert lives.differences(lives.read_truth(truth), found) == [
        "a: 0 receipts",
        "b: 2 receipts",
        "c: 2 rows, and 3 to 3 were counted",
        "d: ended with error, and not with stop",
        "e: 1 receipts, and it was never begun",
    ]


def leave(path: Path, *receipts: receipt_pb2.Receipt) -> None:
    """What a process that died left in its slots."""
    path.parent.mkdir(exist_ok=True)
    slots = Slots(slots_path(path), "dead")
    for each in receipts:
        slot = slots.take()
        slots.write(slot, OpenWork(each, slot).payload)
    slots.close()


def environment() -> dict[str, str]:
    """Ours, with every folder that this process imports from."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
