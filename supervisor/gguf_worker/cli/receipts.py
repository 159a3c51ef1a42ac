"""`gguf-worker receipts`: what works took, of one node's ledger or of a whole mesh."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import anyio

from gguf_worker.cli.errors import CommandError
from gguf_worker.cli.text import plain_table, print_json, size
from gguf_worker.logs import utc
from gguf_worker.node.nats import NatsOptions, connect_nats
from gguf_worker.node.receipts.query import (
    Group,
    ReceiptBook,
    ReceiptQuery,
    ReceiptSum,
    book_of,
    open_ledger,
)
from gguf_worker.node.receipts.store import FIELDS
from gguf_worker.node.receipts.stream import published_receipts
from gguf_worker_v1 import receipt_pb2

COLUMNS = ("settled", "work", "node", "account", "layers", "rows", "again", "tokens", "computed", "ended")
SUM_COLUMNS = ("receipts", "rows", "again", "tokens", "waited", "computed", "in", "out")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptsConfig:
    ledger: Path
    nats: NatsOptions | None
    """Whose stream is read in place of the ledger."""
    query: ReceiptQuery
    by: Group | None
    """Sums are shown of receipts that have this in common; None: the receipts themselves."""
    json: bool


def parse_moment(text: str, *, now: float | None = None) -> int:
    """`"2026-03-01"`, `"2026-03-01T12:00Z"`, or how long ago as `"90m"`, `"24h"`, `"7d"`; in milliseconds
    since 1970. A time without a zone is this machine's. Raises CommandError."""
    if match := re.fullmatch(r"(\d{1,9})([smhdw])", text):
        ago_s = int(match[1]) * _SECONDS[match[2]]
        return max(0, round(((time.time() if now is None else now) - ago_s) * 1000))
    try:
        return max(0, round(datetime.fromisoformat(text).astimezone().timestamp() * 1000))
    except (ValueError, OverflowError, OSError) as error:
        raise CommandError(
            f"{text!r} is no time", remedy="write 2026-03-01, 2026-03-01T12:00Z, or 24h for a day ago"
        ) from error


def receipts(config: ReceiptsConfig) -> None:
    """Prints receipts, or sums of them. Raises LedgerError and NatsError."""
    with _book(config) as book:
        if config.by is not None:
            _print_sums(book.sum(config.query, config.by), config)
        else:
            _print_receipts(book, config)


@contextmanager
def _book(config: ReceiptsConfig) -> Iterator[ReceiptBook]:
    if config.nats is None:
        with open_ledger(config.ledger) as book:
            yield book
    else:
        with book_of(anyio.run(_fetch, config.nats, config.query.node)) as book:
            yield book


async def _fetch(options: NatsOptions, node: str | None) -> list[receipt_pb2.Receipt]:
    async with connect_nats(options) as nats:
        return [receipt async for receipt in published_receipts(nats, node=node)]


def _print_receipts(book: ReceiptBook, config: ReceiptsConfig) -> None:
    found = book.select(config.query)
    if config.json:
        print_json({"receipts": [_to_map(receipt) for receipt in found]})
        return
    if found:
        print(plain_table(COLUMNS, [_row(receipt) for receipt in found]))
    sums = book.sum(config.query, "finish_reason")
    count = sum(each.receipts for each in sums)
    print(
        f"{count} receipts: {sum(each.rows for each in sums)} rows, "
        f"{sum(each.tokens_sampled for each in sums)} tokens, "
        f"{_duration(sum(each.compute_us for each in sums))} computed"
        + (f"; the newest {len(found)} are shown" if len(found) < count else "")
    )


def _print_sums(sums: Sequence[ReceiptSum], config: ReceiptsConfig) -> None:
    if config.json:
        print_json({"by": config.by, "sums": [asdict(each) for each in sums]})
    elif sums:
        print(plain_table((str(config.by), *SUM_COLUMNS), [_sum_row(each) for each in sums]))
    else:
        print("0 receipts")


def _to_map(receipt: receipt_pb2.Receipt) -> Mapping[str, object]:
    return {name: list(receipt.layers) if name == "layers" else getattr(receipt, name) for name in FIELDS}


def _row(receipt: receipt_pb2.Receipt) -> tuple[str, ...]:
    return (
        utc(receipt.settled_at_ms / 1000),
        receipt.work_id,
        receipt.node,
        receipt.account or "-",
        " ".join(receipt.layers),
        str(receipt.rows),
        str(receipt.rows_replayed),
        str(receipt.tokens_sampled),
        _duration(receipt.compute_us),
        receipt.finish_reason,
    )


def _sum_row(each: ReceiptSum) -> tuple[str, ...]:
    return (
        each.value or "-",
        str(each.receipts),
        str(each.rows),
        str(each.rows_replayed),
        str(each.tokens_sampled),
        _duration(each.queue_us),
        _duration(each.compute_us),
        size(each.bytes_in),
        size(each.bytes_out),
    )


def _duration(us: int) -> str:
    return f"{us / 1e6:.3f} s"
