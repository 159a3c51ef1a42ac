"""Receipts as messages of a JetStream stream: one subject for each, so that the stream itself sees a second
one and refuses it, whenever it comes."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import AsyncIterator

from google.protobuf.message import DecodeError
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

from gguf_worker.logs import log_event
from gguf_worker.node.nats import Nats, nats_errors
from gguf_worker_v1 import receipt_pb2

log = logging.getLogger(__name__)

STREAM = "gguf-worker-receipts"
SUBJECTS = "gguf-worker.receipts.>"

ANSWER_S = 5.0
"""How long the server may take."""

_WRONG_LAST_SEQUENCE = 10071
"""The server's code for a subject that has a message already."""
_MOST = (1 << 53) - 1
"""Of any figure: more than a node computes in its life, and a number in every JSON reader and database."""
_LATEST_MS = 253_402_300_800_000
"""The year 10000."""
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,63}")
_PAGE = 256
_FIGURES = frozenset(
    field.name for field in receipt_pb2.Receipt.DESCRIPTOR.fields if field.cpp_type == field.CPPTYPE_UINT64
)


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
    found = read_receipt(subject, stored.data or b"") or receipt_pb2.Receipt()
    return None if found == receipt else found


def read_receipt(subject: str, data: bytes) -> receipt_pb2.Receipt | None:
    """The receipt of a message; None where it is none, or none of the work and node that the subject names:
    who may write a node's subjects speaks for that node only."""
    try:
        receipt = receipt_pb2.Receipt.FromString(data)
    except DecodeError:
        return None
    figures = (value for field, value in receipt.ListFields() if field.name in _FIGURES)
    is_one = (
        subject == subject_of(receipt.work_id, receipt.node)
        and all(value <= _MOST for value in figures)
        and max(receipt.opened_at_ms, receipt.settled_at_ms) < _LATEST_MS
    )
    return receipt if is_one else None


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
    """Every receipt that the stream holds now, the oldest first; none where there is no stream. What is no
    receipt of its subject is left out and logged. Raises NatsError."""
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
                    if (receipt := read_receipt(message.subject, message.data)) is not None:
                        yield receipt
                    else:
                        _say_refused(message.subject)
        finally:
            await reader.unsubscribe()


def _say_refused(subject: str) -> None:
    text = f"a message on {subject[:256]} is no receipt of that work and node, and is left out"
    log_event(log, logging.WARNING, "receipt_refused", text, subject=subject[:256])
