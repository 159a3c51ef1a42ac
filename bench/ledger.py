"""What does it cost to write a receipt?

Works go on side by side, each forward counted before the next one, as a node's streams do it: by the ledger
as it is, and for comparison by one statement of SQLite for each count, on the event loop (WAL, synchronous
NORMAL). `count` is the time of a call, and `stall` the longest that the event loop was held up by anything.

    make bench
    python bench/ledger.py [MODEL] [--tiny] [--works 16] [--counts 20000]
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from gguf_worker.node.ledger import Use
from gguf_worker.node.receipts.ledger import SqliteLedger
from gguf_worker.work import Work

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


async def measure(count: Count, n_works: int, n_counts: int) -> tuple[list[float], float]:
    """Seconds of every count, sorted, and the longest stall."""
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
    return sorted(took), stalls.worst_s


async def by_ledger(folder: Path, n_works: int, n_counts: int) -> tuple[list[float], float]:
    async with SqliteLedger(folder / "ledger.sqlite", node="bench") as ledger:
        entries = [await ledger.open(Work(), artifact="0" * 64, layers=(0, 16)) for _ in range(n_works)]

        async def count(number: int) -> None:
            await entries[number].count(ONE_ROW)

        return await measure(count, n_works, n_counts)


async def by_statements(folder: Path, n_works: int, n_counts: int) -> tuple[list[float], float]:
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
        return await measure(count, n_works, n_counts)
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


def show(name: str, measured: tuple[list[float], float]) -> None:
    took, stall_s = measured
    figures = (took[len(took) // 2], took[len(took) * 99 // 100], took[-1], stall_s)
    print(f"{name:24}" + "".join(f"{1e6 * figure:12.0f}" for figure in figures))


async def main(n_works: int, n_counts: int) -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        print(f"{n_works} works, {n_counts} counts, microseconds")
        print(f"{'':24}{'count p50':>12}{'p99':>12}{'worst':>12}{'stall':>12}")
        show("ledger", await by_ledger(folder, n_works, n_counts))
        show("a statement each", await by_statements(folder, n_works, n_counts))
        print(f"works settled a second: {await settled_per_second(folder, max(1, n_counts // 4)):.0f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", help="not needed; every bench is given it")
    parser.add_argument("--tiny", action="store_true", help="just to see that it runs")
    parser.add_argument("--works", type=int, default=16)
    parser.add_argument("--counts", type=int, default=20_000)
    arguments = parser.parse_args()
    anyio.run(main, arguments.works, 200 if arguments.tiny else arguments.counts)
