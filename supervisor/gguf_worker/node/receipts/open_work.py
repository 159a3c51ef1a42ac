"""A work that goes on: what was counted of it, in the form that its receipt will have. No I/O."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import Self

from gguf_worker.errors import RequestError
from gguf_worker.node.ledger import Use, WorkConflict, WorkSettled
from gguf_worker.node.receipts.slots import MOST_BYTES
from gguf_worker.work import Work
from gguf_worker_v1 import receipt_pb2

Layers = tuple[int, int]

INTERRUPTED = "interrupted"
"""The reason of works that nobody ended."""

_LONGEST_REASON = 32
"""Characters of a finish reason that are kept; the known ones are shorter."""
_COUNTERS_BYTES = 300
"""What the counters of a receipt and its reason take at most."""


@dataclass(slots=True, eq=False)
class OpenWork:
    receipt: receipt_pb2.Receipt
    """What was counted so far. With a finish reason it takes no further session, and is complete once the
    sessions that it has are over."""
    slot: int
    """Where it is written down."""
    sessions: int = 0
    """Open now."""
    due: float = 0.0
    """When it is settled unless it has a session by then."""
    is_over: bool = False
    """Its receipt is complete."""
    reached: dict[str, int] = field(default_factory=dict)
    """Highest position that was computed, of each of the receipt's layers."""

    @classmethod
    def restored(cls, slot: int, payload: bytes) -> Self:
        """As `payload` says it; without a session."""
        n_layers = payload[0]
        positions = struct.unpack_from(f"<{n_layers}Q", payload, 1)
        receipt = receipt_pb2.Receipt.FromString(payload[1 + 8 * n_layers :])
        return cls(receipt, slot, reached=dict(zip(receipt.layers, positions, strict=True)))

    @property
    def payload(self) -> bytes:
        """What is written down: the number of layers, the position that each of them reached, the receipt."""
        positions = [self.reached.get(span, 0) for span in self.receipt.layers]
        packed = struct.pack(f"<B{len(positions)}Q", len(positions), *positions)
        return packed + self.receipt.SerializeToString()

    @property
    def is_waiting(self) -> bool:
        """Whether it has no session and may get one."""
        return not self.sessions and not self.receipt.finish_reason

    def join(self, work: Work, artifact: str, layers: Layers) -> None:
        """One more session. Raises WorkSettled, WorkConflict, and RequestError where there is no room for
        the layers."""
        if self.receipt.finish_reason:
            raise settled(self.receipt.work_id, self.receipt.finish_reason)
        for name, expected, actual in (
            ("account", self.receipt.account, work.account),
            ("artifact", self.receipt.artifact, artifact),
        ):
            if expected != actual:
                raise WorkConflict(
                    f"work {work.work_id} goes on with another {name} (begin another work)",
                    fields={"work_id": work.work_id, "actual": actual},
                )
        if _span(layers) not in self.receipt.layers:
            _check_fits(self.receipt, more=(_span(layers),))
            self.receipt.layers.append(_span(layers))
        self.receipt.sessions += 1
        self.sessions += 1

    def counted(self, layers: Layers, use: Use) -> Self:
        """The work with this use. Raises WorkSettled where it is over."""
        if self.is_over:
            raise settled(self.receipt.work_id, self.receipt.finish_reason)
        span, end = _span(layers), use.start + use.rows
        reached = self.reached.get(span, 0)
        receipt = receipt_pb2.Receipt()
        receipt.CopyFrom(self.receipt)
        receipt.rows += use.rows
        receipt.rows_replayed += max(0, min(end, reached) - use.start)
        receipt.tokens_sampled += use.tokens_sampled
        receipt.queue_us += use.queue_us
        receipt.compute_us += use.compute_us
        receipt.bytes_in += use.bytes_in
        receipt.bytes_out += use.bytes_out
        return replace(self, receipt=receipt, reached={**self.reached, span: max(reached, end)})

    def take(self, counted: Self) -> None:
        """Goes on with what `counted` gave, now that it is written down."""
        self.receipt, self.reached = counted.receipt, counted.reached


def first_receipt(
    work: Work, *, node: str, artifact: str, layers: Layers, now_ms: int
) -> receipt_pb2.Receipt:
    """Of a work that begins with one session. Raises RequestError where it is too large, or has no id."""
    if not work.work_id:
        raise RequestError("a work needs an id", code="argument")
    receipt = receipt_pb2.Receipt(
        work_id=work.work_id,
        node=node,
        request_id=work.request_id,
        account=work.account,
        artifact=artifact,
        layers=(_span(layers),),
        sessions=1,
        opened_at_ms=now_ms,
    )
    _check_fits(receipt)
    return receipt


def settle(receipt: receipt_pb2.Receipt, finish_reason: str, now_ms: int) -> None:
    """Ends it, where it has not ended."""
    if not receipt.finish_reason:
        receipt.finish_reason = finish_reason[:_LONGEST_REASON]
        receipt.settled_at_ms = now_ms


def settled(work_id: str, reason: str) -> WorkSettled:
    """A work that has its receipt was opened once more."""
    return WorkSettled(
        f"work {work_id} has its receipt already: it ended with {reason!r} (begin another work)",
        fields={"work_id": work_id, "finish_reason": reason},
    )


def _span(layers: Layers) -> str:
    return f"{layers[0]}:{layers[1]}"


def _check_fits(receipt: receipt_pb2.Receipt, more: tuple[str, ...] = ()) -> None:
    n_bytes = receipt.ByteSize() + sum(2 + len(span) for span in more)
    n_bytes += 8 * (len(receipt.layers) + len(more))
    if n_bytes + _COUNTERS_BYTES > MOST_BYTES:
        raise RequestError(
            f"the ids, the account and the layers of a work take {n_bytes} bytes, and "
            f"{MOST_BYTES - _COUNTERS_BYTES} is the limit (shorten them)",
            code="argument",
        )
