"""Settled receipts go to NATS: each stays in the ledger's outbox until the stream has acknowledged it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import anyio

from gguf_worker._tasks import plain_task_group
from gguf_worker.errors import GgufWorkerError
from gguf_worker.logs import log_event
from gguf_worker.node.nats import Nats, NatsError
from gguf_worker.node.receipts.errors import LedgerError
from gguf_worker.node.receipts.ledger import SqliteLedger
from gguf_worker.node.receipts.stream import make_stream, publish
from gguf_worker_v1 import receipt_pb2

log = logging.getLogger(__name__)

AT_ONCE = 64
"""Receipts that wait for their acknowledgement."""

LAST_S = 3.0
"""How long the end waits until the last receipts are published; what is left is published after the next
start."""

_RETRY_S = (0.2, 15.0)
"""Between attempts: the first wait, which doubles, and the longest."""


@asynccontextmanager
async def publishing(ledger: SqliteLedger, nats: Nats, *, replicas: int = 1) -> AsyncIterator[None]:
    """Receipts go to NATS while this is open. It is left when the node has served its last stream: what is
    open then is settled, and the last receipts are waited for, for `LAST_S`."""
    async with plain_task_group() as tasks:
        tasks.start_soon(partial(publish_receipts, ledger, nats, replicas=replicas), name="receipts to NATS")
        try:
            yield
        finally:
            ledger.settle_open()
            with (
                anyio.move_on_after(LAST_S),
                suppress(LedgerError),
            ):  # they are published after the next start
                await ledger.wait_published()
            tasks.cancel_scope.cancel()


async def publish_receipts(ledger: SqliteLedger, nats: Nats, *, replicas: int = 1) -> None:
    """Runs until it is cancelled. What cannot be published now is tried again; whenever it is cancelled or
    killed, the next call goes on with what is left. `replicas` is for a stream that it makes."""
    publisher = _Publisher(ledger, nats)
    while True:
        await nats.wait_connected()
        try:
            await make_stream(nats, replicas=replicas)
            await publisher.publish_all()
        except (NatsError, LedgerError) as error:
            await publisher.hold(error)


class _Publisher:
    """Says once that receipts wait, and once that they do not any more."""

    def __init__(self, ledger: SqliteLedger, nats: Nats) -> None:
        self._ledger = ledger
        self._nats = nats
        self._wait_s = _RETRY_S[0]
        self._trouble = ""

    async def publish_all(self) -> None:
        """What is in the outbox, and whatever comes. Raises NatsError and LedgerError."""
        seen = 0
        while True:
            while batch := await self._ledger.unpublished(AT_ONCE):
                await self._publish(batch)
                self._resume()
            seen = await self._ledger.wait_stored(seen)

    async def hold(self, error: GgufWorkerError) -> None:
        """Returns when it is time for the next attempt."""
        if error.message != self._trouble:
            text = f"receipts wait in the ledger: {error.message}"
            log_event(log, logging.WARNING, "receipts_held", text, code=error.code)
        self._trouble = error.message
        await anyio.sleep(self._wait_s)
        self._wait_s = min(_RETRY_S[1], 2 * self._wait_s)

    def _resume(self) -> None:
        if self._trouble:
            log_event(log, logging.INFO, "receipts_resumed", "receipts are published again")
        self._wait_s, self._trouble = _RETRY_S[0], ""

    async def _publish(self, batch: list[tuple[int, receipt_pb2.Receipt]]) -> None:
        acknowledged: list[int] = []
        failures: list[NatsError] = []

        async def one(number: int, receipt: receipt_pb2.Receipt) -> None:
            try:
                other = await publish(self._nats, receipt)
            except NatsError as error:
                failures.append(error)
                return
            acknowledged.append(number)
            if other is not None:
                _say_other(receipt, other)

        async with plain_task_group() as tasks:
            for number, receipt in batch:
                tasks.start_soon(one, number, receipt)
        if acknowledged:
            await self._ledger.mark_published(acknowledged)
        if failures:
            raise failures[0]


def _say_other(receipt: receipt_pb2.Receipt, other: receipt_pb2.Receipt) -> None:
    """Two nodes of one name, or a ledger that was put back from a backup: the first receipt stands."""
    log_event(
        log,
        logging.ERROR,
        "receipt_conflict",
        f"work {receipt.work_id} on {receipt.node} has another receipt in the stream already, with "
        f"{other.rows} rows and not {receipt.rows}; is there a second node of this name?",
        work_id=receipt.work_id,
        node=receipt.node,
    )
