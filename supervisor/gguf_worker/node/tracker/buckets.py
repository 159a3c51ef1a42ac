"""Key-value buckets of NATS JetStream: made where they are missing, written by comparison, and watched.

Nothing here knows what is kept in them.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import anyio
from nats import errors
from nats.aio.msg import Msg
from nats.js.api import DeliverPolicy, Header, KeyValueConfig, StorageType, StreamConfig
from nats.js.errors import (
    APIError,
    KeyNotFoundError,
    NotFoundError,
    ServiceUnavailableError,
)
from nats.js.kv import KV_DEL, KV_MARKER_REASON, KV_OP, KeyValue

from gguf_worker.errors import GgufWorkerError
from gguf_worker.logs import log_event
from gguf_worker.node.nats import Nats, nats_errors
from gguf_worker.node.tracker.tracker import TrackerError

log = logging.getLogger(__name__)

UNWATCH_S = 1.0
"""How long the end of a watch waits for the server."""

WATCH_KEPT_S = 300.0
"""How long the server keeps a watch of which it hears nothing."""

MESSAGES_AHEAD = 256
"""Of a watch, that are here already."""

_DELETIONS = (KV_DEL, "Remove")
"""What a deletion is called by clients, and by the server."""

_WRONG_LAST_SEQUENCE = (10071, 10164)
"""What the server calls a comparison that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketConfig:
    """What a bucket is like; one that differs is brought to it."""

    name: str
    description: str
    age_s: float | None
    """After which a value is forgotten; None is never."""
    in_memory: bool
    max_value_bytes: int
    max_bytes: int
    """Of the whole bucket."""
    replicas: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A value of a bucket, or that it was deleted."""

    key: str
    value: bytes | None
    """None where the key was deleted."""
    revision: int
    """Rises with every write in the bucket, from 1 where the bucket was made anew."""
    written_at: object
    """When, by the server's clock. With `revision` it tells one write from every other."""


class Conflict(Exception):
    """Raised when a value is not the one that a write was to replace."""


class Bucket:
    """One bucket, by one connection. Calls raise TrackerError, within `timeout_s` each."""

    def __init__(self, nats: Nats, config: BucketConfig, timeout_s: float) -> None:
        self._nats = nats
        self._config = config
        self._timeout_s = timeout_s
        self._kv: KeyValue | None = None
        self._takes_ttl = False
        self._was_denied = False

    @property
    def name(self) -> str:
        """Of the bucket."""
        return self._config.name

    async def open(self) -> None:
        """Finds the bucket or makes it. Comes before everything else, and again after each reconnection: the
        server may have lost it."""
        with self._calling():
            self._kv = await self._find()

    async def get(self, key: str) -> Entry | None:
        """The value; None where there never was one or it was forgotten."""
        with self._calling():
            try:
                return _entry(await self._store.get(key))
            except KeyNotFoundError as error:
                return None if error.entry is None else _entry(error.entry, deleted=True)

    async def put(self, key: str, value: bytes, *, last: int, ttl_s: float | None = None) -> int:
        """Writes the value where revision `last` is the key's last one, 0 where there is none; the new
        revision. Where the server can, it forgets the value after `ttl_s`. Raises Conflict."""
        with self._calling():
            self._check_connected()
            found = await self._nats.jetstream.publish(
                self._prefix + key,
                value,
                headers={Header.EXPECTED_LAST_SUBJECT_SEQUENCE: str(last)},
                msg_ttl=math.ceil(ttl_s) if ttl_s is not None and self._takes_ttl else None,
            )
            return found.seq

    async def delete(self, key: str, *, last: int) -> None:
        """Deletes the key where `last` is its last revision. Raises Conflict."""
        with self._calling():
            await self._store.delete(key, last=last)

    async def watch(
        self, on_entry: Callable[[Entry], None], on_current: Callable[[], None], quiet_s: float
    ) -> None:
        """Tells of the last value of every key, then that these were all, then of each new one. Returns when
        nothing came for `quiet_s`; then somebody looks anew, in case the server forgot the watch."""
        messages: asyncio.Queue[Msg] = asyncio.Queue(MESSAGES_AHEAD)
        async with self._watching(messages) as is_empty:
            if is_empty:
                on_current()
            is_current = is_empty
            while True:
                try:
                    with anyio.fail_after(quiet_s):
                        message = await messages.get()
                except TimeoutError:
                    return
                if (entry := self._told(message)) is not None:
                    on_entry(entry)
                if not is_current and message.metadata.num_pending == 0:
                    is_current = True
                    on_current()

    @asynccontextmanager
    async def _watching(self, messages: asyncio.Queue[Msg]) -> AsyncIterator[bool]:
        """Gives whether nothing is there yet. The library's own watch is not used: where it is cancelled
        while it asks that, its subscription stays, and is renewed with every connection."""
        self._check_connected()
        with self._calling():
            subscription = await self._nats.jetstream.subscribe(
                f"{self._prefix}>",
                stream=f"KV_{self._config.name}",
                cb=messages.put,
                ordered_consumer=True,
                deliver_policy=DeliverPolicy.LAST_PER_SUBJECT,
                inactive_threshold=WATCH_KEPT_S,
            )
        try:
            with self._calling():
                found = await subscription.consumer_info()
            yield found.num_pending == 0 and subscription.delivered == 0
        finally:
            with anyio.move_on_after(UNWATCH_S, shield=True):
                try:
                    await subscription.unsubscribe()
                except errors.Error:
                    """The connection is gone, and the watch with it."""

    def _told(self, message: Msg) -> Entry | None:
        """None for what the server forgets: leases end by clock."""
        headers = message.headers or {}
        operation = headers.get(KV_OP) or headers.get(KV_MARKER_REASON)
        if operation not in (None, *_DELETIONS):
            return None
        return Entry(
            key=message.subject.removeprefix(self._prefix),
            value=message.data if operation is None else None,
            revision=message.metadata.sequence.stream,
            written_at=message.metadata.timestamp,
        )

    @property
    def _prefix(self) -> str:
        """Of the subjects of keys."""
        return f"$KV.{self._config.name}."

    @property
    def _store(self) -> KeyValue:
        self._check_connected()
        assert self._kv is not None
        return self._kv

    def _check_connected(self) -> None:
        if self._kv is None or not self._nats.is_connected:
            raise TrackerError(f"there is no connection to NATS at {self._nats.url} just now", retryable=True)

    async def _find(self) -> KeyValue:
        streams, name = self._nats.jetstream, f"KV_{self._config.name}"
        try:
            await self._amend((await streams.stream_info(name)).config)
        except NotFoundError:
            await self._make()
        self._takes_ttl = bool((await streams.stream_info(name)).config.allow_msg_ttl)
        return await streams.key_value(self._config.name)

    async def _make(self) -> None:
        config = self._config
        await self._nats.jetstream.create_key_value(
            KeyValueConfig(
                bucket=config.name,
                description=config.description,
                history=1,
                ttl=config.age_s,
                max_value_size=config.max_value_bytes,
                max_bytes=config.max_bytes,
                storage=StorageType.MEMORY if config.in_memory else StorageType.FILE,
                replicas=config.replicas,
            )
        )

    async def _amend(self, stream: StreamConfig) -> None:
        """Brings a bucket that somebody made otherwise to what it must be, as far as the server lets us."""
        wanted = {
            "max_age": self._config.age_s or 0,
            "max_msg_size": self._config.max_value_bytes,
            "max_msgs_per_subject": 1,
        }
        differs = any(getattr(stream, name) != value for name, value in wanted.items())
        if not differs or self._was_denied:
            return
        try:
            with anyio.fail_after(self._timeout_s / 2):  # who may only read is not answered
                await self._nats.jetstream.update_stream(_amended(stream, wanted))
        except (errors.Error, TimeoutError) as error:
            self._was_denied = True
            text = f"NATS bucket {self._config.name} has other limits than it should, which stay: {error!r}"
            log_event(log, logging.WARNING, "bucket_differs", text, bucket=self._config.name)

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """Bounds a call; what fails in it is a TrackerError, or a Conflict."""
        what = f"bucket {self._config.name} of NATS at {self._nats.url}"
        try:
            with nats_errors(what), anyio.fail_after(self._timeout_s):
                try:
                    yield
                except (errors.NoRespondersError, ServiceUnavailableError) as error:
                    raise TrackerError(
                        f"{what}: no JetStream answers (start the server with --jetstream)",
                        retryable=True,
                    ) from error
                except APIError as error:
                    if error.err_code in _WRONG_LAST_SEQUENCE:
                        raise Conflict from error
                    raise
        except (TrackerError, Conflict):
            raise
        except GgufWorkerError as error:
            raise TrackerError(error.message, retryable=True) from error


def _amended(config: StreamConfig, wanted: dict[str, Any]) -> StreamConfig:
    """The server wants no window for duplicates that is longer than what it keeps."""
    window = min(config.duplicate_window or 120.0, wanted["max_age"] or 120.0)
    return config.evolve(**wanted, duplicate_window=window)


def _entry(found: KeyValue.Entry, *, deleted: bool = False) -> Entry:
    return Entry(
        key=found.key,
        value=None if deleted else found.value or b"",
        revision=found.revision or 0,
        written_at=found.created,
    )
