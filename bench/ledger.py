"""What does it cost to write a receipt?

Works go on side by side, each forward counted before the next one, as a node's streams do it: by the ledger
as it is, and for comparison by one statement of SQLite for each count, on the event loop (WAL, synchronous
NORMAL). A count is one call; a stall is the longest that anything held up the event loop. No model is loaded.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import anyio

from gguf_worker.node.ledger import Use
from gguf_worker.node.receipts.ledger import SqliteLedger
from gguf_worker.testing.figures.figure import percentile
from gguf_worker.work import Work
from kit import program
from kit.program import Options
from kit.report import Ratio, Report, Section, Side
from kit.rounds import show_progress

ONE_ROW = Use(start=0, rows=1, tokens_sampled=1, queue_us=50, compute_us=4000, bytes_in=8192, bytes_out=8192)
STEP_S = 0.001
"""What a stage computes between two counts."""

Count = Callable[[int], Awaitable[None]]


class Stalls:
    """The longest time between two turns of the event loop, past what was asked for."""

    def __init__(self) -> None:
        self.worst_s = 0.0

    async def watch(self) -> None:
        while True:
            began = time.perf_counter()
            await anyio.sleep(STEP_S)
            self.worst_s = max(self.worst_s, time.perf_counter() - began - STEP_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """One way to count, over many calls. Times in microseconds."""

    p50: float
    p99: float
    worst: float
    stall: float
    """The longest one."""


async def measured(count: Count, n_works: int, n_counts: int) -> Counted:
    """Counts, and looks at the event loop meanwhile."""
    took: list[float] = []
    stalls = Stalls()

    async def one(number: int) -> None:
        for _ in range(n_counts // n_works):
            await anyio.sleep(STEP_S)
            began = time.perf_counter()
            await count(number)
            took.append(time.perf_counter() - began)

    async with anyio.create_task_group() as watching:
        watching.start_soon(stalls.watch)
        async with anyio.create_task_group() as works:
            for number in range(n_works):
                works.start_soon(one, number)
        watching.cancel_scope.cancel()
    return Counted(
        p50=1e6 * percentile(took, 50),
        p99=1e6 * percentile(took, 99),
        worst=1e6 * max(took),
        stall=1e6 * stalls.worst_s,
    )


async def by_ledger(folder: Path, n_works: int, n_counts: int) -> Counted:
    async with SqliteLedger(folder / "ledger.sqlite", node="bench") as ledger:
        entries = [await ledger.open(Work(), artifact="0" * 64, layers=(0, 16)) for _ in range(n_works)]

        async def count(number: int) -> None:
            await entries[number].count(ONE_ROW)

        return await measured(count, n_works, n_counts)


async def by_statements(folder: Path, n_works: int, n_counts: int) -> Counted:
    connection = sqlite3.connect(folder / "plain.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(
        "CREATE TABLE works (id INTEGER PRIMARY KEY, rows INTEGER, tokens INTEGER, us INTEGER)"
    )
    connection.executemany("INSERT INTO works VALUES (?, 0, 0, 0)", [(number,) for number in range(n_works)])

    async def count(number: int) -> None:
        connection.execute(
            "UPDATE works SET rows = rows + 1, tokens = tokens + 1, us = us + ? WHERE id = ?",
            (ONE_ROW.compute_us, number),
        )

    try:
        return await measured(count, n_works, n_counts)
    finally:
        connection.close()


async def settled_per_second(folder: Path, n_works: int) -> float:
    """Works that are opened, counted once, closed and in the database."""
    async with SqliteLedger(folder / "settled.sqlite", node="bench") as ledger:
        began = time.perf_counter()
        for _ in range(n_works):
            entry = await ledger.open(Work(), artifact="0" * 64, layers=(0, 16))
            await entry.count(ONE_ROW)
            await entry.close("stop")
        await ledger.flush()
        return n_works / (time.perf_counter() - began)


WAYS: dict[str, Callable[[Path, int, int], Awaitable[Counted]]] = {
    "a statement each": by_statements,
    "ledger": by_ledger,
}
FIGURES = {
    "p50": "a count, p50",
    "p99": "a count, p99",
    "worst": "a count, the slowest",
    "stall": "the longest stall of the event loop",
}


async def measure(options: Options) -> Report:
    n_works = options.given.works
    n_counts = 200 if options.is_tiny else options.given.counts
    found: dict[str, list[Counted]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:  # on a disk, where /tmp may be none
        for number in range(options.rounds):
            folder = Path(name) / str(number)
            folder.mkdir()
            for way in WAYS if number % 2 == 0 else reversed(WAYS):
                show_progress(f"round {number + 1} of {options.rounds}: {way}")
                found[way].append(await WAYS[way](folder, n_works, n_counts))
        per_s = await settled_per_second(Path(name), max(1, n_counts // 4))
    show_progress("")
    return Report(
        question="What does it cost to write a receipt?",
        sections=(*(_section(figure, found) for figure in FIGURES), _settled(per_s)),
        settings={"works": n_works, "counts": n_counts, "rounds": options.rounds},
    )


def _section(figure: str, found: dict[str, list[Counted]]) -> Section:
    statements, ledger = (
        Side(name=name, values=tuple(getattr(one, figure) for one in counted))
        for name, counted in found.items()
    )
    return Section(
        title=FIGURES[figure],
        unit="us",
        sides=(statements, ledger),
        ratios=(Ratio(ours=ledger, peer=statements, more_is_better=False),),
    )


def _settled(per_s: float) -> Section:
    return Section(
        title="works that are opened, counted once, closed and in the database",
        unit="works/s",
        sides=(Side(name="ledger", values=(per_s,)),),
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--works", type=int, default=16, help="side by side (16)")
    parser.add_argument("--counts", type=int, default=20_000, help="of all of them (20000)")


if __name__ == "__main__":
    program.run("ledger", __doc__, measure, rounds=3, add=add_options)
