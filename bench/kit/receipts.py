"""Whether what clients of a gateway saw is what nodes bill."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gguf_worker.node.receipts.query import ReceiptQuery, open_ledger
from gguf_worker_v1 import receipt_pb2
from kit.crowd import WHOLE, Asked

SHOWN = 5
"""Most problems that are listed."""
WHOLE_REASONS = ("stop", "length")


@dataclass(frozen=True, slots=True, kw_only=True)
class Billed:
    """What was found."""

    facts: Mapping[str, object]
    problems: tuple[str, ...]


def billed(ledgers: Mapping[str, Path], asked: Mapping[str, Asked], problems: Sequence[str]) -> Billed:
    """Compares the ledgers of nodes, whose nodes have ended, with the requests. `problems` are those that are
    known already."""
    receipts = [receipt for path in ledgers.values() for receipt in _read(path)]
    found = [*problems, *differences(receipts, asked, list(ledgers))]
    more = [f"and {len(found) - SHOWN} more like that"] if len(found) > SHOWN else []
    return Billed(facts=facts_of(receipts, asked), problems=(*found[:SHOWN], *more))


def differences(
    receipts: Iterable[receipt_pb2.Receipt], asked: Mapping[str, Asked], nodes: Sequence[str]
) -> Iterable[str]:
    """Of a request that was answered as a whole, every node has one receipt for each choice, of the same
    rows, and the tokens of the answer are billed. Of one that was left, a node has one at most for each
    choice."""
    by_request: dict[str, list[receipt_pb2.Receipt]] = defaultdict(list)
    for receipt in receipts:
        by_request[receipt.request_id].append(receipt)
    for request_id, one in asked.items():
        for problem in _of_request(one, by_request.get(request_id, []), nodes):
            yield f"{request_id} ({one.outcome}, {one.choices} choices): {problem}"


def _of_request(asked: Asked, receipts: Sequence[receipt_pb2.Receipt], nodes: Sequence[str]) -> Iterable[str]:
    twice = [key for key, n in Counter((one.work_id, one.node) for one in receipts).items() if n > 1]
    if twice:
        yield f"{len(twice)} works have more than one receipt of a node"
    for node in nodes:
        of_node = [one for one in receipts if one.node == node]
        if len(of_node) > asked.choices or (asked.outcome == WHOLE and len(of_node) < asked.choices):
            yield f"{len(of_node)} receipts of {node}"
    if asked.outcome != WHOLE:
        return
    if reasons := {one.finish_reason for one in receipts} - set(WHOLE_REASONS):
        yield f"billed as {', '.join(sorted(reasons))}"
    rows: dict[str, set[int]] = defaultdict(set)
    for one in receipts:
        rows[one.work_id].add(one.rows)
    if any(len(of_work) > 1 for of_work in rows.values()):
        yield "the nodes billed different rows"
    tokens = sum(one.tokens_sampled for one in receipts)
    if tokens != asked.tokens:
        yield f"{tokens} tokens billed, {asked.tokens} in the answer"


def facts_of(receipts: Sequence[receipt_pb2.Receipt], asked: Mapping[str, Asked]) -> dict[str, object]:
    """Counts."""
    known = [one for one in receipts if one.request_id in asked]
    return {
        "receipts": len(known),
        "works": len({one.work_id for one in known}),
        "by_node": dict(sorted(Counter(one.node for one in known).items())),
        "by_reason": dict(Counter(one.finish_reason for one in known).most_common()),
        "rows": sum(one.rows for one in known),
        "tokens": sum(one.tokens_sampled for one in known),
    }


def _read(path: Path) -> list[receipt_pb2.Receipt]:
    with open_ledger(path) as book:
        return book.select(ReceiptQuery())
