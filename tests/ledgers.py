"""What the tests of receipts share: forwards to count, and receipts."""

from __future__ import annotations

from collections.abc import Callable

from gguf_worker.node.ledger import Use
from gguf_worker.node.receipts.ledger import SqliteLedger
from gguf_worker_v1 import receipt_pb2

GRACE_S = 30.0
ARTIFACT = "a" * 64
LAYERS = (0, 8)

MakeLedger = Callable[..., SqliteLedger]
Stored = Callable[[], list[receipt_pb2.Receipt]]


def use(start: int, rows: int, tokens: int = 0) -> Use:
    """One forward; times and bytes follow from the rows."""
    return Use(
        start=start,
        rows=rows,
        tokens_sampled=tokens,
        queue_us=rows,
        compute_us=10 * rows,
        bytes_in=4 * rows,
        bytes_out=8 * rows,
    )


def receipt(work_id: str = "work", node: str = "node-a", **values: object) -> receipt_pb2.Receipt:
    """A settled one."""
    fields = {
        "request_id": "request",
        "artifact": ARTIFACT,
        "layers": ("0:8",),
        "finish_reason": "stop",
        "rows": 3,
        "sessions": 1,
        "settled_at_ms": 2000,
        **values,
    }
    return receipt_pb2.Receipt(work_id=work_id, node=node, **fields)  # type: ignore[arg-type]
