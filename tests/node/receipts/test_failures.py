"""Files that are full, gone, damaged, of others or in use: said with the remedy, and never overwritten."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from pathlib import Path

import anyio
import pytest

from gguf_worker.node.receipts.errors import LedgerCorrupt, LedgerError, LedgerLocked, LedgerVersion
from gguf_worker.node.receipts.ledger import slots_path
from gguf_worker.work import Work
from ledgers import ARTIFACT, LAYERS, MakeLedger, Stored, use
from manual_clock import ManualClock

pytestmark = pytest.mark.anyio


async def test_second_writer_is_told_who_the_first_one_is(make_ledger: MakeLedger) -> None:
    async with make_ledger("node-a"):
        with pytest.raises(LedgerLocked) as raised:
            await make_ledger("node-b").__aenter__()
    assert raised.value.code == "ledger_locked"
    assert raised.value.retryable
    assert raised.value.fields["holder"].startswith(f"node node-a (process {os.getpid()} on ")
    async with make_ledger("node-b"):
        pass


async def test_newer_database_is_refused_with_both_numbers(path: Path, make_ledger: MakeLedger) -> None:
    async with make_ledger():
        pass
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 7")
    connection.close()
    with pytest.raises(LedgerVersion) as raised:
        await make_ledger().__aenter__()
    assert (raised.value.fields["found"], raised.value.fields["known"]) == ("7", "1")


async def test_newer_slots_are_refused_with_both_numbers(path: Path, make_ledger: MakeLedger) -> None:
    async with make_ledger():
        pass
    with slots_path(path).open("r+b") as file:
        file.seek(len(b"gguf-worker open works\n"))
        file.write((2).to_bytes(4, "little"))
    with pytest.raises(LedgerVersion) as raised:
        await make_ledger().__aenter__()
    assert (raised.value.fields["found"], raised.value.fields["known"]) == ("2", "1")


@pytest.mark.parametrize("kind", ["garbage", "other database", "damaged pages", "garbage slots"])
async def test_file_that_is_no_ledger_stays_as_it_is(path: Path, make_ledger: MakeLedger, kind: str) -> None:
    async with make_ledger():
        pass
    spoilt = spoil(path, kind)
    before = spoilt.read_bytes()
    with pytest.raises(LedgerCorrupt) as raised:
        await make_ledger().__aenter__()
    assert str(spoilt) in raised.value.message
    assert spoilt.read_bytes() == before


async def test_folder_that_cannot_be_made(tmp_path: Path, path: Path, make_ledger: MakeLedger) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(LedgerError) as raised:
        await make_ledger().__aenter__()
    assert raised.value.code == "ledger"
    assert str(path) in raised.value.message


async def test_full_disk_holds_up_new_works_and_loses_nothing(
    make_ledger: MakeLedger, clock: ManualClock, stored: Stored
) -> None:
    """The database is full: what was settled waits in its slot, and goes on when there is room."""
    async with make_ledger() as ledger:
        limit = ledger._writer._connection
        pages = limit.execute("PRAGMA page_count").fetchone()[0]
        limit.execute(f"PRAGMA max_page_count = {pages}")
        names = [f"{number} {'x' * 400}" for number in range(30)]
        for name in names:
            entry = await ledger.open(Work(work_id=name), artifact=ARTIFACT, layers=LAYERS)
            await entry.count(use(0, 1))
            await entry.close("stop")
        await clock.wait_for_sleeper()
        assert ledger.failure is not None
        assert "the disk is full (free some space)" in ledger.failure.message
        with pytest.raises(LedgerError) as raised:
            await ledger.open(Work(), artifact=ARTIFACT, layers=LAYERS)
        assert raised.value.retryable
        assert raised.value is not ledger.failure  # it would keep the frames of everybody who is refused
        limit.execute("PRAGMA max_page_count = 100000")
        clock.advance(0.5)
        await ledger.flush()
        assert ledger.failure is None
        await ledger.open(Work(), artifact=ARTIFACT, layers=LAYERS)
    assert {receipt.work_id for receipt in stored()} == set(names)


async def test_receipts_that_the_database_never_took_wait_for_the_next_start(
    make_ledger: MakeLedger, clock: ManualClock, stored: Stored
) -> None:
    async with make_ledger() as ledger:
        ledger._writer._connection.execute("PRAGMA query_only = on")
        entry = await ledger.open(Work(work_id="work"), artifact=ARTIFACT, layers=LAYERS)
        await entry.count(use(0, 1))
        await entry.close("stop")
        await clock.wait_for_sleeper()
    assert stored() == []
    async with make_ledger():
        assert [receipt.finish_reason for receipt in stored()] == ["stop"]


async def test_count_that_the_disk_does_not_take_counts_nothing(
    make_ledger: MakeLedger, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are undone, so computing them again is no replay."""

    def full(_file: int, _data: bytes, _offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with make_ledger() as ledger:
        entry = await ledger.open(Work(work_id="work"), artifact=ARTIFACT, layers=LAYERS)
        await entry.count(use(0, 2))
        with monkeypatch.context() as patch:
            patch.setattr("os.pwrite", full)
            with pytest.raises(LedgerError, match="the disk is full") as raised:
                await entry.count(use(2, 5))
        assert raised.value.retryable
        await entry.count(use(2, 5))
        await entry.close("stop")
    assert [(receipt.rows, receipt.rows_replayed) for receipt in stored()] == [(7, 0)]


async def test_half_written_slot_is_a_full_disk(
    make_ledger: MakeLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operating system writes what fits, and says how much that was."""
    async with make_ledger() as ledger:
        with monkeypatch.context() as patch:
            patch.setattr("os.pwrite", lambda _file, data, _offset: len(data) // 2)
            with pytest.raises(LedgerError, match="the disk is full"):
                await ledger.open(Work(), artifact=ARTIFACT, layers=LAYERS)
        assert ledger.open_works == 0


async def test_deleted_slots_are_noticed_with_the_next_work(path: Path, make_ledger: MakeLedger) -> None:
    """What was counted is in memory still, and gets its receipt."""
    async with make_ledger() as ledger:
        entry = await ledger.open(Work(work_id="work"), artifact=ARTIFACT, layers=LAYERS)
        await entry.count(use(0, 1))
        slots_path(path).unlink()
        with pytest.raises(LedgerError, match="was deleted or replaced"):
            await ledger.open(Work(), artifact=ARTIFACT, layers=LAYERS)
        with pytest.raises(LedgerError, match="was deleted or replaced"):
            await entry.count(use(1, 1))
        await entry.close("stop")


async def test_deleted_database_is_noticed_and_its_receipts_are_kept(
    path: Path, make_ledger: MakeLedger, clock: ManualClock, stored: Stored
) -> None:
    async with make_ledger() as ledger:
        shutil.move(path, path.with_suffix(".away"))
        entry = await ledger.open(Work(work_id="work"), artifact=ARTIFACT, layers=LAYERS)
        await entry.count(use(0, 1))
        await entry.close("stop")
        await clock.wait_for_sleeper()
        assert "was deleted or replaced" in str(ledger.failure)
    async with make_ledger():
        assert [receipt.work_id for receipt in stored()] == ["work"]


async def test_replaced_database_is_not_written_to(
    path: Path, make_ledger: MakeLedger, clock: ManualClock
) -> None:
    async with make_ledger() as ledger:
        shutil.move(shutil.copy(path, path.with_suffix(".copy")), path)
        entry = await ledger.open(Work(work_id="work"), artifact=ARTIFACT, layers=LAYERS)
        await entry.close("stop")
        await clock.wait_for_sleeper()
        assert "was deleted or replaced" in str(ledger.failure)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
async def test_read_only_file(path: Path, make_ledger: MakeLedger) -> None:
    async with make_ledger():
        pass
    await anyio.Path(path).chmod(0o400)
    with pytest.raises(LedgerError, match="may not be written"):
        await make_ledger().__aenter__()


def spoil(path: Path, kind: str) -> Path:
    """Makes a file of a ledger something else; says which one."""
    match kind:
        case "garbage":
            path.write_bytes(b"these are my notes\n" * 1000)
        case "other database":
            path.unlink()
            with sqlite3.connect(path) as connection:
                connection.execute("CREATE TABLE songs (title TEXT)")
            connection.close()
        case "damaged pages":
            with path.open("r+b") as file:
                file.seek(4096)
                file.write(b"\xa5" * 4096)
        case "garbage slots":
            slots_path(path).write_bytes(b"these are my notes\n" * 100)
            return slots_path(path)
    return path
