"""One receipt for each work: what it says, and when it is written."""

from __future__ import annotations

import contextlib

import anyio
import anyio.lowlevel
import pytest

from gguf_worker.errors import RequestError
from gguf_worker.node.ledger import Ledger, LedgerEntry, WorkConflict, WorkSettled
from gguf_worker.node.receipts.ledger import SqliteLedger
from gguf_worker.work import Work
from ledgers import ARTIFACT, GRACE_S, LAYERS, MakeLedger, Stored, use
from manual_clock import ManualClock

pytestmark = pytest.mark.anyio


async def opened(ledger: Ledger, work: Work, layers: tuple[int, int] = LAYERS) -> LedgerEntry:
    return await ledger.open(work, artifact=ARTIFACT, layers=layers)


async def test_receipt_says_what_was_counted(make_ledger: MakeLedger, stored: Stored) -> None:
    work = Work(request_id="request", work_id="work", account="alice")
    async with make_ledger() as ledger:
        entry = await opened(ledger, work)
        await entry.count(use(0, 5))
        await entry.count(use(5, 1, tokens=1))
        await entry.close("stop")
        await ledger.flush()
        (receipt,) = stored()
    assert (receipt.work_id, receipt.request_id, receipt.account) == ("work", "request", "alice")
    assert (receipt.node, receipt.artifact, list(receipt.layers)) == ("node-a", ARTIFACT, ["0:8"])
    assert (receipt.rows, receipt.rows_replayed, receipt.tokens_sampled) == (6, 0, 1)
    assert (receipt.queue_us, receipt.compute_us) == (6, 60)
    assert (receipt.bytes_in, receipt.bytes_out) == (24, 48)
    assert (receipt.finish_reason, receipt.sessions) == ("stop", 1)
    assert (receipt.opened_at_ms, receipt.settled_at_ms) == (1_000_000, 1_000_000)


async def test_first_reason_stands(make_ledger: MakeLedger, stored: Stored) -> None:
    """Of two sessions, and of two calls for one session; what the other one computes is counted still."""
    async with make_ledger() as ledger:
        first = await opened(ledger, Work(work_id="work"), (0, 8))
        second = await opened(ledger, Work(work_id="work"), (16, 24))
        await first.count(use(0, 2))
        await second.count(use(0, 2))
        await first.close("cancelled")
        await first.close("stop")
        await second.count(use(2, 1))
        await second.close("stop")
        await ledger.flush()
        (receipt,) = stored()
    assert (receipt.finish_reason, receipt.rows, receipt.sessions) == ("cancelled", 5, 2)
    assert list(receipt.layers) == ["0:8", "16:24"]


async def test_settled_work_takes_nothing_more(make_ledger: MakeLedger) -> None:
    """Neither in the moment after, nor once the receipt is in the database."""
    async with make_ledger() as ledger:
        entry = await opened(ledger, Work(work_id="work"))
        other = await opened(ledger, Work(work_id="work"))
        await entry.close("stop")
        with pytest.raises(WorkSettled) as raised:
            await opened(ledger, Work(work_id="work"))
        assert raised.value.code == "work_settled"
        assert raised.value.fields == {"work_id": "work", "finish_reason": "stop"}
        await other.close("")
        with pytest.raises(RequestError) as ended:
            await other.count(use(0, 1))
        assert ended.value.code == "session_closed"
        await ledger.flush()
        with pytest.raises(WorkSettled):
            await opened(ledger, Work(work_id="work"))
    async with make_ledger() as ledger:
        with pytest.raises(WorkSettled):
            await opened(ledger, Work(work_id="work"))


async def test_rows_below_the_highest_position_are_replayed(make_ledger: MakeLedger, stored: Stored) -> None:
    """By layers: what one stage computed is new to another."""
    work = Work(work_id="work")
    async with make_ledger() as ledger:
        entry = await opened(ledger, work, (0, 8))
        await entry.count(use(0, 10))
        await entry.count(use(8, 4))
        await entry.close("")
        entry = await opened(ledger, work.again(), (0, 8))
        await entry.count(use(0, 15))
        other = await opened(ledger, work, (8, 16))
        await other.count(use(0, 12))
        await entry.close("length")
        await other.close("length")
        await ledger.flush()
        (receipt,) = stored()
    assert (receipt.rows, receipt.rows_replayed, receipt.sessions) == (41, 2 + 12, 3)


async def test_work_that_nobody_ends_is_interrupted_after_its_grace(
    make_ledger: MakeLedger, clock: ManualClock, stored: Stored
) -> None:
    async with make_ledger() as ledger:
        entry = await opened(ledger, Work(work_id="work"))
        await entry.count(use(0, 3))
        await entry.close("")
        clock.advance(GRACE_S - 1)
        assert ledger.settle_due(clock.now()) == clock.now() + 1
        assert ledger.open_works == 1
        seen = 0
        clock.advance(1)
        await ledger.wait_stored(seen)
        (receipt,) = stored()
    assert (receipt.finish_reason, receipt.rows) == ("interrupted", 3)


async def test_grace_ends_with_a_new_session(make_ledger: MakeLedger, clock: ManualClock) -> None:
    work = Work(work_id="work")
    async with make_ledger() as ledger:
        entry = await opened(ledger, work)
        await entry.count(use(0, 3))
        await entry.close("")
        entry = await opened(ledger, work.again())
        clock.advance(2 * GRACE_S)
        assert ledger.settle_due(clock.now()) is None
        await entry.count(use(3, 1))
        await entry.close("stop")
        await entry.close("")


async def test_work_that_computed_nothing_leaves_no_receipt(make_ledger: MakeLedger, stored: Stored) -> None:
    """A refused session is nobody's bill, and takes no room; one that was ended on purpose is a work."""
    async with make_ledger() as ledger:
        refused = await opened(ledger, Work(work_id="refused"))
        await refused.close("")
        assert ledger.open_works == 0
        cancelled = await opened(ledger, Work(work_id="cancelled"))
        await cancelled.close("cancelled")
        await opened(ledger, Work(work_id="refused"))
    assert [receipt.work_id for receipt in stored()] == ["cancelled"]


async def test_end_of_the_node_settles_what_is_open(make_ledger: MakeLedger, stored: Stored) -> None:
    async with make_ledger() as ledger:
        entry = await opened(ledger, Work(work_id="work"))
        await entry.count(use(0, 1))
    with pytest.raises(WorkSettled):
        await entry.count(use(1, 1))
    await entry.close("stop")
    assert [receipt.finish_reason for receipt in stored()] == ["interrupted"]


@pytest.mark.parametrize(
    ("account", "artifact"), [("mallory", ARTIFACT), ("alice", "b" * 64)], ids=["account", "artifact"]
)
async def test_work_stays_what_it_was(make_ledger: MakeLedger, account: str, artifact: str) -> None:
    """Whoever learns an id cannot spend on another's account, nor read whose it is."""
    async with make_ledger() as ledger:
        await opened(ledger, Work(work_id="work", account="alice"))
        with pytest.raises(WorkConflict) as raised:
            await ledger.open(Work(work_id="work", account=account), artifact=artifact, layers=LAYERS)
        assert raised.value.code == "work_conflict"
        assert "alice" not in repr(raised.value)


@pytest.mark.parametrize("work", [Work(work_id=""), Work(account="a" * 1000)], ids=["no id", "too long"])
async def test_work_that_no_slot_holds_is_refused(make_ledger: MakeLedger, work: Work) -> None:
    async with make_ledger() as ledger:
        with pytest.raises(RequestError) as raised:
            await opened(ledger, work)
        assert raised.value.code == "argument"
        assert ledger.open_works == 0


async def test_layers_are_bounded(make_ledger: MakeLedger) -> None:
    """Sessions of ever other layers end with an error before the slot is full."""
    async with make_ledger() as ledger:
        fitting = 0
        with contextlib.suppress(RequestError):
            for fitting in range(1000):
                await opened(ledger, Work(work_id="work"), (fitting, fitting + 1))
        assert 32 < fitting < 999
        entry = await opened(ledger, Work(work_id="work"), (0, 1))
        await entry.count(use(0, 1 << 31))
        await entry.close("x" * 1000)


async def test_works_of_any_number_share_the_file(make_ledger: MakeLedger, stored: Stored) -> None:
    """Slots are given back and taken again."""
    async with make_ledger() as ledger:
        for turn in range(3):
            entries = [await opened(ledger, Work(work_id=f"{turn} {number}")) for number in range(100)]
            for entry in entries:
                await entry.count(use(0, 1))
                await entry.close("stop")
            await ledger.flush()
    assert len({receipt.work_id for receipt in stored()}) == 300


async def test_ledger_is_the_seams_ledger(make_ledger: MakeLedger) -> None:
    async with make_ledger() as ledger:
        seam: Ledger = ledger
        entry: LedgerEntry = await seam.open(Work(), artifact=ARTIFACT, layers=LAYERS)
        await entry.close("error")
    assert isinstance(ledger, SqliteLedger)


async def test_full_synchronisation_waits_for_the_disk(
    make_ledger: MakeLedger, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a count returns, and before a session's end does."""
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    async with make_ledger(synchronous="full") as ledger:
        entry = await opened(ledger, Work(work_id="work"))
        await entry.count(use(0, 1))
        assert len(synced) == 1
        await entry.close("stop")
        assert len(synced) == 2
    assert len(stored()) == 1


async def test_sessions_that_end_while_the_disk_is_waited_for_are_one_receipt(
    make_ledger: MakeLedger, stored: Stored
) -> None:
    """The first one waits for the disk when the second one ends the work."""
    async with make_ledger(synchronous="full") as ledger:
        entries = [await opened(ledger, Work(work_id="work"), layers) for layers in ((0, 8), (8, 16))]
        async with anyio.create_task_group() as tasks:
            for entry in entries:
                await entry.count(use(0, 1))
                tasks.start_soon(entry.close, "stop")
        await ledger.flush()
        (receipt,) = stored()
        assert (receipt.rows, receipt.sessions) == (2, 2)
        assert ledger.open_works == 0


@pytest.mark.parametrize("turns", range(0, 24, 3))
async def test_cancellation_leaves_nothing_behind(
    make_ledger: MakeLedger, stored: Stored, turns: int
) -> None:
    """Wherever it comes: while the files are opened, while works go on, while they are settled."""

    async def use_it() -> None:
        async with make_ledger() as ledger:
            entry = await opened(ledger, Work(work_id="work"))
            await entry.count(use(0, 1))
            await entry.close("stop")
            await ledger.flush()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(use_it)
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    async with make_ledger():
        assert [each.finish_reason for each in stored()] in ([], ["stop"])
