"""Whether the receipts of nodes say what a client saw: one for each work and node, with the rows computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio

from gguf_worker.node.nats import Nats
from gguf_worker.node.receipts.ledger import SqliteLedger
from gguf_worker.node.receipts.publisher import publish_receipts
from gguf_worker.node.receipts.query import ReceiptQuery, open_ledger
from gguf_worker.node.receipts.stream import published_receipts
from gguf_worker.testing.mesh.witness import Seen
from gguf_worker_v1 import receipt_pb2

PUBLISH_S = 60.0
SHOWN = 5
"""Most problems of one kind that are listed."""

Key = tuple[str, str]
"""Work and node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What was compared, and what did not fit."""

    works: int
    """Of the client, of which something was computed."""
    receipts: int
    rows: int
    """Billed."""
    interrupted: int
    """Receipts of works that their node did not see the end of."""
    problems: tuple[str, ...]


async def audit(ledgers: Mapping[str, Path], seen: Mapping[Key, Seen], nats: Nats) -> Audit:
    """Compares ledgers by node, the stream of receipts and the client's truth. The nodes have ended."""
    for node, path in ledgers.items():
        await _publish_the_rest(node, path, nats)
    kept = [receipt for path in ledgers.values() for receipt in _receipts(path)]
    sent = [receipt async for receipt in published_receipts(nats)]
    problems = [
        *_doubles(kept, "the ledgers"),
        *_doubles(sent, "the stream"),
        *_differences({_key(one): one for one in kept}, {_key(one): one for one in sent}),
        *_wrong(seen, {_key(one): one for one in kept}),
    ]
    computed = {work for (work, _), rows in seen.items() if rows.answered}
    return Audit(
        works=len(computed),
        receipts=len(kept),
        rows=sum(one.rows for one in kept),
        interrupted=sum(one.finish_reason == "interrupted" for one in kept),
        problems=tuple(problems),
    )


async def _publish_the_rest(node: str, path: Path, nats: Nats) -> None:
    """What a node had not published when it ended: it would do so at its next start. That is also when works
    that were open at a SIGKILL go on, and are settled at an orderly end."""
    async with SqliteLedger(path, node=node):
        pass
    async with SqliteLedger(path, node=node) as ledger:
        with anyio.fail_after(PUBLISH_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(publish_receipts, ledger, nats)
                while await ledger.unpublished(1):  # noqa: ASYNC110 - there is no event for it
                    await anyio.sleep(0.02)
                tasks.cancel_scope.cancel()


def _receipts(path: Path) -> list[receipt_pb2.Receipt]:
    with open_ledger(path) as book:
        return book.select(ReceiptQuery())


def _key(receipt: receipt_pb2.Receipt) -> Key:
    return receipt.work_id, receipt.node


def _doubles(receipts: Iterable[receipt_pb2.Receipt], where: str) -> list[str]:
    counts = Counter(map(_key, receipts))
    return _listed(f"{where} have {n} receipts of {key}" for key, n in counts.items() if n > 1)


def _differences(
    kept: Mapping[Key, receipt_pb2.Receipt], sent: Mapping[Key, receipt_pb2.Receipt]
) -> list[str]:
    return _listed(
        f"ledger and stream differ about {key}"
        for key in sorted(kept.keys() | sent.keys())
        if kept.get(key) != sent.get(key)
    )


def _wrong(seen: Mapping[Key, Seen], receipts: Mapping[Key, receipt_pb2.Receipt]) -> list[str]:
    """Rows that were answered are billed; rows that were never asked for are not."""

    def faults() -> Iterable[str]:
        for key, rows in seen.items():
            receipt = receipts.get(key)
            billed = 0 if receipt is None else receipt.rows
            if receipt is None and rows.answered:
                yield f"{key} has no receipt, and {rows.answered} rows were computed"
            elif not rows.answered <= billed <= rows.asked:
                yield f"{key}: {billed} rows billed, {rows.answered} answered, {rows.asked} asked for"

    return _listed(faults())


def _listed(problems: Iterable[str]) -> list[str]:
    found = list(problems)
    more = [f"and {len(found) - SHOWN} more like that"] if len(found) > SHOWN else []
    return found[:SHOWN] + more
