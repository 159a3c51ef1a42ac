"""Works on a ledger whose process is killed at random moments, and what their receipts then have to say.

The truth is kept where the works are computed, in a file that is only appended to: a line before each call to
the ledger and one after it. A call that was not answered may have counted or not; every other one has.

    python -m gguf_worker.testing.receipts LEDGER TRUTH WORKS SEED [NATS_URL]
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.lowlevel

from gguf_worker.node.ledger import Use, WorkSettled
from gguf_worker.node.nats import NatsOptions, connect_nats
from gguf_worker.node.receipts.ledger import SqliteLedger
from gguf_worker.node.receipts.open_work import INTERRUPTED
from gguf_worker.node.receipts.publisher import publish_receipts
from gguf_worker.work import Work
from gguf_worker_v1 import receipt_pb2

NODE = "killed"
AT_ONCE = 8
"""Works that go on side by side."""
GRACE_S = 0.05
"""Short, so that some works are interrupted and others come back to the next process."""
LONGEST_LIFE_S = 0.05
EARLY = 0.2
"""Of the processes die while they start."""
REASONS = ("stop", "length", "cancelled", "error", "")

Note = Callable[[str, str, object], None]


@dataclass(slots=True)
class Truth:
    """One work, as its computing side knows it."""

    rows: int = 0
    """Counted for certain."""
    rows_asked: int = 0
    """Those, and what may have been counted."""
    reason: str = ""
    """It was ended with."""
    reasons_asked: set[str] = field(default_factory=set)
    """It may have been ended with."""

    def take(self, event: str, value: str) -> None:
        """One line of the file."""
        match event:
            case "count?":
                self.rows_asked += int(value)
            case "count":
                self.rows += int(value)
            case "close?":
                self.reasons_asked.add(value)
            case "close":
                self.reason = value

    def difference(self, receipts: list[receipt_pb2.Receipt]) -> str | None:
        """What is wrong with the receipts of this work."""
        needs_one = self.rows > 0 or self.reason not in ("", INTERRUPTED)
        if len(receipts) != 1:
            return f"{len(receipts)} receipts" if receipts or needs_one else None
        receipt = receipts[0]
        if not self.rows <= receipt.rows <= self.rows_asked:
            return f"{receipt.rows} rows, and {self.rows} to {self.rows_asked} were counted"
        reasons = {self.reason} if self.reason else {INTERRUPTED, *self.reasons_asked}
        if receipt.finish_reason not in reasons:
            return f"ended with {receipt.finish_reason}, and not with {' or '.join(sorted(reasons))}"
        return None


def read_truth(path: Path) -> dict[str, Truth]:
    """By work."""
    truth: dict[str, Truth] = {}
    for line in path.read_text().splitlines():
        work_id, event, value = line.split()
        truth.setdefault(work_id, Truth()).take(event, value)
    return truth


def differences(truth: dict[str, Truth], receipts: Iterable[receipt_pb2.Receipt]) -> list[str]:
    """Everything in which the receipts are not what the works were; one line each."""
    of_work: dict[str, list[receipt_pb2.Receipt]] = {work_id: [] for work_id in truth}
    unknown = Counter[str]()
    for receipt in receipts:
        if receipt.work_id in of_work:
            of_work[receipt.work_id].append(receipt)
        else:
            unknown[receipt.work_id] += 1
    found = [
        f"{work_id}: {what}"
        for work_id, its_truth in truth.items()
        if (what := its_truth.difference(of_work[work_id])) is not None
    ]
    return found + [
        f"{work_id}: {count} receipts, and it was never begun" for work_id, count in unknown.items()
    ]


# ---- the side that is killed --------------------------------------------------------------------


def run_lives(ledger: Path, truth: Path, n_works: int, seed: int, nats_url: str | None = None) -> int:
    """Forks one process after the other until all works were begun and one of them came to its end; gives
    how many were killed. Call it where nothing else runs."""
    longest_s, known = LONGEST_LIFE_S, 0
    for killed in range(10 * n_works):
        life = _Life(ledger, truth, n_works, random.Random(f"{seed} {killed}"), nats_url, longest_s)
        pid = os.fork()
        if pid == 0:
            life.live()
        _, status = os.waitpid(pid, 0)
        if status == 0:
            return killed
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            raise RuntimeError(f"a process failed with status {status}; what it said is on stderr")
        before, known = known, truth.stat().st_size if truth.exists() else 0
        longest_s = LONGEST_LIFE_S if known > before else 2 * longest_s  # on a machine that is busy
    raise RuntimeError("the works do not come to an end")


@dataclass(slots=True)
class _Life:
    """One process. It is killed by a thread of its own, wherever the others are just then."""

    ledger: Path
    truth: Path
    n_works: int
    chances: random.Random
    nats_url: str | None
    longest_s: float

    def live(self) -> None:
        """Computes until it is killed, or all works were begun already; never returns."""
        status = 1
        try:
            begun = len(read_truth(self.truth)) if self.truth.exists() else 0
            dies_early = self.chances.random() < EARLY
            if begun < self.n_works and dies_early:
                self._die_soon()
            anyio.run(self._compute, begun, not dies_early)
            if begun < self.n_works:
                signal.pause()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def _unfinished(self) -> list[str]:
        """Some of the works that the processes before this one did not end."""
        works = read_truth(self.truth).items()
        return [
            work_id for work_id, truth in works if not truth.reasons_asked and self.chances.random() < 0.5
        ]

    def _die_soon(self) -> None:
        life_s = self.chances.uniform(0, self.longest_s)
        threading.Timer(life_s, os.kill, (os.getpid(), signal.SIGKILL)).start()

    async def _compute(self, begun: int, dies: bool) -> None:
        file = os.open(self.truth, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

        def note(work_id: str, event: str, value: object) -> None:
            os.write(file, f"{work_id} {event} {value}\n".encode())

        async with AsyncExitStack() as stack:
            ledger = await stack.enter_async_context(SqliteLedger(self.ledger, node=NODE, grace_s=GRACE_S))
            if self.nats_url is not None:
                options = NatsOptions(servers=(self.nats_url,), connect_timeout_s=30.0)
                nats = await stack.enter_async_context(connect_nats(options))
                tasks = await stack.enter_async_context(anyio.create_task_group())
                stack.callback(tasks.cancel_scope.cancel)
                tasks.start_soon(publish_receipts, ledger, nats)
            if begun < self.n_works and dies:
                self._die_soon()
            async with anyio.create_task_group() as works:
                for work_id in self._unfinished():
                    works.start_soon(_one_work, ledger, work_id, note, self.chances)
            for first in range(begun, self.n_works, AT_ONCE):
                async with anyio.create_task_group() as works:
                    for number in range(first, min(first + AT_ONCE, self.n_works)):
                        works.start_soon(_one_work, ledger, f"work-{number}", note, self.chances)


async def _one_work(ledger: SqliteLedger, work_id: str, note: Note, chances: random.Random) -> None:
    note(work_id, "begin", "-")
    work = Work(work_id=work_id, account=f"account of {work_id}")
    try:
        entry = await ledger.open(work, artifact="0" * 64, layers=(0, 8))
    except WorkSettled:  # it has not come back in time
        return
    position = 0
    for _ in range(chances.randrange(6)):
        await anyio.lowlevel.checkpoint()
        if chances.random() < 0.2:  # the stage is lost, and everything computed again
            await entry.close("")
            work, position = work.again(), 0
            entry = await ledger.open(work, artifact="0" * 64, layers=(0, 8))
        rows = chances.randint(1, 40)
        note(work_id, "count?", rows)
        await entry.count(_use(position, rows))
        note(work_id, "count", rows)
        position += rows
    reason = chances.choice(REASONS)
    note(work_id, "close?", reason or INTERRUPTED)
    await entry.close(reason)
    note(work_id, "close", reason or INTERRUPTED)


def _use(start: int, rows: int) -> Use:
    return Use(
        start=start, rows=rows, tokens_sampled=1, queue_us=5, compute_us=100, bytes_in=4 * rows, bytes_out=4
    )


if __name__ == "__main__":
    ledger, truth, works, seed, *nats_url = sys.argv[1:]
    print(run_lives(Path(ledger), Path(truth), int(works), int(seed), *nats_url))
