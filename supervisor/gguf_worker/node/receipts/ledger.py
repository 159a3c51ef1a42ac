"""The ledger of a node: works that go on in memory and in slots, settled ones in SQLite.

The event loop writes slots, which takes microseconds and waits for no disk, and looks a new work up by its
key. A settled work's slot says so before anything else; from there a task of the ledger's own moves it into
the database, and tries again for as long as that cannot be written. A process that dies leaves its slots, and
the next one goes on with them.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import anyio.to_thread

from gguf_worker._tasks import plain_task_group
from gguf_worker.errors import RequestError
from gguf_worker.logs import log_event, utc
from gguf_worker.node.clock import Clock, MonotonicClock
from gguf_worker.node.ledger import Use
from gguf_worker.node.receipts.errors import LedgerError
from gguf_worker.node.receipts.open_work import INTERRUPTED, Layers, OpenWork, first_receipt, settle, settled
from gguf_worker.node.receipts.slots import Slots
from gguf_worker.node.receipts.store import Store, Synchronous
from gguf_worker.work import Work
from gguf_worker_v1 import receipt_pb2

log = logging.getLogger(__name__)

DEFAULT_GRACE_S = 30.0
"""How long a work without a session is waited for."""

_RETRY_S = (0.5, 15.0)
"""Between attempts to write the database: the first wait, which doubles, and the longest."""
_EXIT_S = 5.0
"""How long the end waits for the database."""


class SqliteLedger:
    """The receipts of one node, in `path` and files beside it. Used as an async context manager.

    What a returned `count` says is safe from SIGKILL. A loss of power may take the last seconds, unless
    `synchronous` is `full`: then every count waits for the disk, which takes milliseconds.
    """

    def __init__(
        self,
        path: Path,
        *,
        node: str,
        grace_s: float = DEFAULT_GRACE_S,
        synchronous: Synchronous = "normal",
        clock: Clock | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = path
        self.node = node
        self._grace_s = grace_s
        self._synchronous = synchronous
        self._clock = clock or MonotonicClock()
        self._wall_clock = wall_clock
        self._works: dict[str, OpenWork] = {}
        self._to_store: list[OpenWork] = []
        self._wake_storing = anyio.Event()
        self._wake_settling = anyio.Event()
        self._stored = anyio.Event()
        self._marked = anyio.Event()
        self._storings = 0
        self._failure: LedgerError | None = None
        self._one_thread = anyio.CapacityLimiter(1)
        self._stack = AsyncExitStack()

    @property
    def failure(self) -> LedgerError | None:
        """Why no new work is taken; None where all is well."""
        return self._failure

    @property
    def open_works(self) -> int:
        """Works whose receipt is not complete."""
        return sum(not work.is_over for work in self._works.values())

    # ---- its life -------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Opens or makes the files and goes on with what a process that died left. Raises LedgerLocked,
        LedgerVersion, LedgerCorrupt or another LedgerError."""
        async with AsyncExitStack() as stack:
            self._slots = await anyio.to_thread.run_sync(self._open_slots)
            stack.callback(self._slots.close)
            self._writer = await anyio.to_thread.run_sync(self._open_store)
            stack.callback(self._writer.close)
            await anyio.to_thread.run_sync(self._writer.check)
            self._reader = await anyio.to_thread.run_sync(self._open_store)
            stack.callback(self._reader.close)
            await self._recover()
            stack.push_async_callback(self._settle_and_store_all)
            tasks = await stack.enter_async_context(plain_task_group())
            stack.callback(tasks.cancel_scope.cancel)
            tasks.start_soon(self._keep_storing, name="receipts of settled works")
            tasks.start_soon(self._keep_settling, name="works that nobody ended")
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Settles what is open. What the database does not take stays in the slots for the next start."""
        await self._stack.__aexit__(kind, error, trace)

    def _open_slots(self) -> Slots:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LedgerError(
                f"ledger {self.path}: its folder cannot be made: {error.strerror} (choose another --ledger)",
                fields={"path": str(self.path)},
            ) from error
        since = utc(self._wall_clock())
        return Slots(
            slots_path(self.path),
            f"node {self.node} (process {os.getpid()} on {socket.gethostname()}, since {since})",
        )

    def _open_store(self) -> Store:
        return Store(self.path, self._synchronous)

    async def _recover(self) -> None:
        """What a process left behind: settled works are stored, the others may come back within the grace."""
        settled_works, open_works = [], []
        for work in self._left_behind():
            name = (work.receipt.work_id, work.receipt.node)
            if not work.receipt.finish_reason and self._reader.finish_reason(*name) is None:
                open_works.append(work)
            else:
                settled_works.append(work.receipt)
        await anyio.to_thread.run_sync(self._writer.insert, settled_works)
        self._slots.retain({work.slot for work in open_works})
        for work in open_works:
            self._works[work.receipt.work_id] = work
            work.due = self._clock.now() + self._grace_s
        if settled_works or open_works:
            count = len(settled_works) + len(open_works)
            text = f"{count} works were left behind; {len(open_works)} have {self._grace_s:g} s to come back"
            log_event(log, logging.WARNING, "receipts_recovered", text, count=count, open=len(open_works))

    def _left_behind(self) -> Iterator[OpenWork]:
        for slot, payload in self._slots.read():
            if payload is None:
                text = f"a work in {slots_path(self.path)} is damaged and has no receipt"
                log_event(log, logging.ERROR, "receipt_damaged", text)
                continue
            work = OpenWork.restored(slot, payload)
            if work.receipt.node != self.node:  # nobody looks for it here
                settle(work.receipt, INTERRUPTED, self._now_ms())
            yield work

    async def _settle_and_store_all(self) -> None:
        with anyio.move_on_after(_EXIT_S, shield=True):
            self.settle_open()
            try:
                await self._store_settled()
            except LedgerError as error:
                text = f"{len(self._to_store)} receipts wait for the next start: {error.message}"
                log_event(log, logging.ERROR, "receipts_waiting", text, code=error.code)

    # ---- works ----------------------------------------------------------------------------------

    async def open(self, work: Work, *, artifact: str, layers: Layers) -> _Entry:
        """Begins or goes on with a work. Raises WorkSettled, WorkConflict, and LedgerError where what
        it computes could not be written down."""
        if self._failure is not None:
            raise _again(self._failure)
        opened = self._works.get(work.work_id)
        if opened is None:
            opened = self._begin(work, artifact, layers)
        else:
            opened.join(work, artifact, layers)
        return _Entry(self, opened, layers)

    def settle_due(self, now: float) -> float | None:
        """Settles works that had no session until now and whose time is over; says when the next one is."""
        waiting = [work for work in self._works.values() if work.is_waiting]
        for work in waiting:
            if work.due <= now:
                self._settle(work, INTERRUPTED)
                self._complete(work)
        return min((work.due for work in waiting if work.due > now), default=None)

    def settle_open(self) -> None:
        """Settles everything that goes on: the node takes no more works."""
        for work in self._works.values():
            if work.receipt.rows and not work.receipt.finish_reason:
                self._settle(work, INTERRUPTED)
            if work.receipt.finish_reason and not work.is_over:
                self._complete(work)

    def _begin(self, work: Work, artifact: str, layers: Layers) -> OpenWork:
        receipt = first_receipt(work, node=self.node, artifact=artifact, layers=layers, now_ms=self._now_ms())
        reason = self._reader.finish_reason(work.work_id, self.node)
        if reason is not None:
            raise settled(work.work_id, reason)
        begun = OpenWork(receipt, self._slots.take(), sessions=1)
        self._works[work.work_id] = begun
        return begun

    async def _count(self, work: OpenWork, layers: Layers, use: Use) -> None:
        counted = work.counted(layers, use)
        self._slots.write(work.slot, counted.payload)
        work.take(counted)
        await self._synchronise()

    async def _close(self, work: OpenWork, finish_reason: str) -> None:
        work.sessions -= 1
        if work.is_over:
            return
        is_settled = bool(finish_reason) and not work.receipt.finish_reason
        if is_settled:
            self._settle(work, finish_reason)
        if work.receipt.finish_reason and not work.sessions:
            self._complete(work)
        elif work.is_waiting and work.receipt.rows:
            work.due = self._clock.now() + self._grace_s
            self._wake_settling.set()
        elif work.is_waiting:  # refused, or lost at once: as if it had not come
            self._forget(work)
        if is_settled:  # and last: other sessions of the work end meanwhile
            await self._synchronise()

    def _settle(self, work: OpenWork, finish_reason: str) -> None:
        settle(work.receipt, finish_reason, self._now_ms())
        try:
            self._slots.write(work.slot, work.payload)
        except LedgerError as error:  # the receipt is in memory, and what was counted in the slot
            self._fail(error)

    def _complete(self, work: OpenWork) -> None:
        work.is_over = True
        self._to_store.append(work)
        self._wake_storing.set()

    def _forget(self, work: OpenWork) -> None:
        del self._works[work.receipt.work_id]
        try:
            self._slots.free(work.slot)
        except LedgerError as error:  # it would be stored again, which changes nothing
            self._fail(error)

    def _now_ms(self) -> int:
        return max(0, round(self._wall_clock() * 1000))

    async def _synchronise(self) -> None:
        if self._synchronous == "full":
            await anyio.to_thread.run_sync(self._slots.sync)

    # ---- the database ---------------------------------------------------------------------------

    async def flush(self) -> None:
        """Returns when every work that is settled now is in the database."""
        while self._to_store:
            await self._stored.wait()

    async def unpublished(self, limit: int) -> list[tuple[int, receipt_pb2.Receipt]]:
        """The oldest receipts that nobody acknowledged yet, with the numbers that `mark_published` takes.
        Raises LedgerError."""
        return await anyio.to_thread.run_sync(self._writer.unpublished, limit, limiter=self._one_thread)

    async def mark_published(self, numbers: Sequence[int]) -> None:
        """They are kept elsewhere as well. Raises LedgerError."""
        await anyio.to_thread.run_sync(self._writer.mark_published, numbers, limiter=self._one_thread)
        marked, self._marked = self._marked, anyio.Event()
        marked.set()

    async def wait_published(self) -> None:
        """Returns when every receipt of works that are settled now is kept elsewhere as well. Raises
        LedgerError."""
        await self.flush()
        marked = self._marked
        while await self.unpublished(1):
            await marked.wait()
            marked = self._marked

    async def wait_stored(self, seen: int) -> int:
        """Returns how often receipts were stored, once that is another number than `seen`."""
        while self._storings == seen:
            await self._stored.wait()
        return self._storings

    async def _keep_storing(self) -> None:
        first_s, most_s = _RETRY_S
        wait_s = first_s
        while True:
            await self._wake_storing.wait()
            self._wake_storing = anyio.Event()
            try:
                await self._store_settled()
                wait_s = first_s
            except LedgerError as error:
                self._fail(error)
                await self._clock.sleep_until(self._clock.now() + wait_s)
                wait_s = min(most_s, 2 * wait_s)
                self._wake_storing.set()

    async def _keep_settling(self) -> None:
        while True:
            self._wake_settling = anyio.Event()
            due = self.settle_due(self._clock.now())
            with anyio.CancelScope() as sleeping:
                async with plain_task_group() as tasks:
                    tasks.start_soon(self._wake_at, due, sleeping)
                    await self._wake_settling.wait()
                    sleeping.cancel()

    async def _wake_at(self, due: float | None, sleeping: anyio.CancelScope) -> None:
        if due is not None:
            await self._clock.sleep_until(due)
            sleeping.cancel()

    async def _store_settled(self) -> None:
        """All at once; a receipt that is there already stays as it is."""
        works = tuple(self._to_store)
        if works:
            receipts = [work.receipt for work in works]
            await anyio.to_thread.run_sync(self._writer.insert, receipts, limiter=self._one_thread)
        self._failure = None
        del self._to_store[: len(works)]
        for work in works:
            self._forget(work)
        if works:
            self._storings += 1
            stored, self._stored = self._stored, anyio.Event()
            stored.set()

    def _fail(self, error: LedgerError) -> None:
        """No new work is taken until the database was written once more."""
        if self._failure is None or self._failure.message != error.message:
            log_event(log, logging.ERROR, "ledger_failed", error.message, code=error.code)
        self._failure = error
        self._wake_storing.set()


class _Entry:
    """One session of a work on this node."""

    def __init__(self, ledger: SqliteLedger, work: OpenWork, layers: Layers) -> None:
        self._ledger = ledger
        self._work = work
        self._layers = layers
        self._closed = False

    async def count(self, use: Use) -> None:
        """Adds what was computed. Raises WorkSettled, RequestError after the session's end, and LedgerError
        where it was not written down."""
        if self._closed:
            raise RequestError("the session was ended; open another one", code="session_closed")
        await self._ledger._count(self._work, self._layers, use)

    async def close(self, finish_reason: str) -> None:
        """The session is over; only the first call counts."""
        if not self._closed:
            self._closed = True
            await self._ledger._close(self._work, finish_reason)


def _again(error: LedgerError) -> LedgerError:
    """The same error, to be raised: one that is raised many times keeps the frames of each of them."""
    return type(error)(error.message, code=error.code, retryable=error.retryable, fields=error.fields)


def slots_path(path: Path) -> Path:
    """Where the works that go on are, of the ledger at `path`."""
    return path.with_name(path.name + ".open")


def default_ledger_path() -> Path:
    """`$XDG_STATE_HOME/gguf-worker/receipts.sqlite`, or the same in `~/.local/state`."""
    state = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(state) if Path(state).is_absolute() else Path.home() / ".local" / "state"
    return folder / "gguf-worker" / "receipts.sqlite"
