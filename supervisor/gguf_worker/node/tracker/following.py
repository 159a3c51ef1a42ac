"""Keeping a bucket watched, whatever happens to the server that it is on."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio

from gguf_worker.logs import log_event
from gguf_worker.node.nats import Nats
from gguf_worker.node.tracker.buckets import Bucket, Entry
from gguf_worker.node.tracker.tracker import TrackerError

log = logging.getLogger(__name__)


class Follower:
    """Keeps one bucket watched for as long as it runs, whatever happens to the server."""

    def __init__(
        self,
        nats: Nats,
        bucket: Bucket,
        saw: Callable[[Entry], None],
        write_again: Callable[[], Awaitable[None]],
        *,
        quiet_s: float,
        retry_s: float,
    ) -> None:
        self._nats = nats
        self._bucket = bucket
        self._quiet_s = quiet_s
        self._retry_s = retry_s
        self._saw = saw
        self._write_again = write_again
        self._seen: dict[str, tuple[int, object]] = {}
        self.current = anyio.Event()
        """Set when everything that was there at the beginning was seen."""
        self.failure: TrackerError | None = None
        """Why it is not watched; None while it is."""

    async def run(self) -> None:
        """Never returns."""
        while True:
            await self._nats.wait_connected()
            try:
                await self._follow_connection()
            except TrackerError as error:
                self._note(error)
                await anyio.sleep(self._retry_s)

    async def _follow_connection(self) -> None:
        """Watches until the connection changes or the watch is silent. Raises TrackerError."""
        with anyio.CancelScope() as scope, self._nats.watching(lambda _: scope.cancel()):
            await self._bucket.open()
            try:
                await self._write_again()
            except TrackerError as error:  # who may not write reads all the same
                log_event(log, logging.DEBUG, "tracker_unwritable", error.message, code=error.code)
            there: set[str] = set()

            def take(entry: Entry) -> None:
                """Not what was seen before: that a watch begins anew renews no lease."""
                writing = (entry.revision, entry.written_at)
                is_known = self._seen.get(entry.key) == writing
                self._seen[entry.key] = writing
                there.add(entry.key)
                if not is_known:
                    self._saw(entry)

            def is_current() -> None:
                """And forgets what the server has forgotten, now that everything that is there came."""
                self._seen = {key: writing for key, writing in self._seen.items() if key in there}
                self._note_current()

            await self._bucket.watch(take, is_current, self._quiet_s)

    def _note_current(self) -> None:
        if self.failure is not None:
            log_event(log, logging.INFO, "tracker_readable", f"{self._bucket.name} is watched again")
        self.failure = None
        self.current.set()

    def _note(self, error: TrackerError) -> None:
        if self.failure is None:
            log_event(log, logging.WARNING, "tracker_unreadable", error.message, code=error.code)
        self.failure = error
