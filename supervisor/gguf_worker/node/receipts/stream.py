"""Receipts as messages of a JetStream stream: one subject for each, so that the stream itself sees a second
one and refuses it, whenever it comes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator

from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    Header,
    StorageType,
    StreamConfig,
)
from nats.js.errors import APIError, NotFoundError

from gguf_worker.node.nats import Nats, nats_errors
from gguf_worker_v1 import receipt_pb2

STREAM = "gguf-worker-receipts"
SUBJECTS = "gguf-worker.receipts.>"

ANSWER_S = 5.0
"""How long the server may take."""

_WRONG_LAST_SEQUENCE = 10071
"""The server's code for a subject that has a message already."""
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,63}")
_PAGE = 256


def subject_of(work_id: str, node: str) -> str:
    """Where the receipt of a work on a node is."""
    return f"gguf-worker.receipts.{_token(node)}.{_token(work_id)}"


def _token(name: str) -> str:
    """The name, or its digest where a subject cannot hold it; that is longer than any name kept as it is."""
    return name if _PLAIN.fullmatch(name) else hashlib.sha256(name.encode()).hexdigest()


async def make_stream(nats: Nats, *, replicas: int = 1) -> None:
    """Makes the stream where there is none; one that is there stays as it is. Raises NatsError."""
    with nats_errors(f"{nats.url} did not make the stream {STREAM}"):
        try:
            await nats.jetstream.stream_info(STREAM)
        except NotFoundError:
            await nats.jetstream.add_stream(
                StreamConfig(
                    name=STREAM,
                    description="One receipt for each work and node, gguf_worker.v1.Receipt",
                    subjects=[SUBJECTS],
                    storage=StorageType.FILE,
                    discard=DiscardPolicy.NEW,
                    num_replicas=replicas,
                )
            )


async def publish(nats: Nats, receipt: receipt_pb2.Receipt) -> receipt_pb2.Receipt | None:
    """Puts a receipt into the stream, once, however often this is called. Gives another receipt that stands
    in its place; None where this one does. Raises NatsError."""
    with nats_errors(f"{nats.url} did not acknowledge the receipt of {receipt.work_id}"):
        if await _append(nats, receipt):
            return None
        subject = subject_of(receipt.work_id, receipt.node)
        stored = await nats.jetstream.get_last_msg(STREAM, subject)
    found = receipt_pb2.Receipt.FromString(stored.data or b"")
    return None if found == receipt else found


async def _append(nats: Nats, receipt: receipt_pb2.Receipt) -> bool:
    """Whether the stream had none for the work and node, and now has this one."""
    headers = {
        Header.MSG_ID.value: subject_of(receipt.work_id, receipt.node),
        Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: "0",
    }
    try:
        answer = await nats.jetstream.publish(
            subject_of(receipt.work_id, receipt.node),
            receipt.SerializeToString(),
            timeout=ANSWER_S,
            stream=STREAM,
            headers=headers,
        )
    except APIError as error:
        if error.err_code != _WRONG_LAST_SEQUENCE:
            raise
        return False
    return not answer.duplicate


async def published_receipts(nats: Nats, *, node: str | None = None) -> AsyncIterator[receipt_pb2.Receipt]:
    """Every receipt that the stream holds now, the oldest first; none where there is no stream. Raises
    NatsError."""
    with nats_errors(f"{nats.url} does not give its receipts"):
        try:
            reader = await nats.jetstream.pull_subscribe(
                f"gguf-worker.receipts.{'*' if node is None else _token(node)}.*",
                stream=STREAM,
                config=ConsumerConfig(
                    ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL, inactive_threshold=ANSWER_S
                ),
            )
        except NotFoundError:
            return
        try:
            left = (await reader.consumer_info()).num_pending or 0
            while left > 0:
                messages = await reader.fetch(min(left, _PAGE), timeout=ANSWER_S)
                left -= len(messages)
                for message in messages:
                    yield receipt_pb2.Receipt.FromString(message.data)
        finally:
            await reader.unsubscribe()
