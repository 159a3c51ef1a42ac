"""What a reader takes from a bucket, whatever becomes of its watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import anyio
import anyio.lowlevel
import pytest

from gguf_worker.node.nats import Nats, NatsOptions
from gguf_worker.node.tracker.buckets import Bucket, Entry
from gguf_worker.node.tracker.following import Follower
from gguf_worker.node.tracker.tracker import TrackerError

pytestmark = pytest.mark.anyio

FAILS = TrackerError("the server does not answer", retryable=True)


class Connection(Nats):
    """Always there, and never looked at."""

    def __init__(self) -> None:
        super().__init__(NatsOptions())

    async def wait_connected(self) -> None:
        await anyio.lowlevel.checkpoint()

    @contextmanager
    def watching(self, watcher: Callable[[bool], None]) -> Iterator[None]:  # noqa: ARG002
        yield


class WatchedBucket(Bucket):
    """Each watch tells of some entries; the ones that say so then fail before everything was told."""

    def __init__(self, *watches: Sequence[Entry | TrackerError]) -> None:
        self._watches = iter(watches)
        self.ended = anyio.Event()
        """Set when all were watched."""

    async def open(self) -> None:
        await anyio.lowlevel.checkpoint()

    @property
    def name(self) -> str:
        return "bucket"

    async def watch(
        self,
        on_entry: Callable[[Entry], None],
        on_current: Callable[[], None],
        quiet_s: float,  # noqa: ARG002
    ) -> None:
        watch = next(self._watches, None)
        if watch is None:
            self.ended.set()
            await anyio.sleep_forever()
        for step in watch or ():
            if isinstance(step, TrackerError):
                raise step
            on_entry(step)
        on_current()


def entry(key: str, revision: int = 1) -> Entry:
    return Entry(key=key, value=b"value", revision=revision, written_at=f"{key} {revision}")


async def writes_nothing() -> None:
    await anyio.lowlevel.checkpoint()


async def cannot_write() -> None:
    raise FAILS


async def followed(bucket: WatchedBucket, write_again: Callable[[], object] = writes_nothing) -> list[str]:
    """The keys that were taken, until all was watched."""
    taken: list[str] = []
    follower = Follower(
        Connection(),
        bucket,
        lambda found: taken.append(f"{found.key}@{found.revision}"),
        write_again,  # type: ignore[arg-type]
        quiet_s=1.0,
        retry_s=0.0,
    )
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follower.run)
            await bucket.ended.wait()
            tasks.cancel_scope.cancel()
    return taken


async def test_watch_that_fails_in_its_middle_forgets_nothing() -> None:
    """Else the next one would take everything for new, and prolong the leases of dead nodes."""
    both = (entry("a"), entry("b"))
    bucket = WatchedBucket(both, (FAILS,), (entry("a"), FAILS), both)
    assert await followed(bucket) == ["a@1", "b@1"]


async def test_every_writing_is_taken_once() -> None:
    """Also one that was made while nothing was watched, and one after the key was gone."""
    bucket = WatchedBucket((entry("a"),), (entry("a", 2),), (), (entry("a", 2),))
    assert await followed(bucket) == ["a@1", "a@2", "a@2"]


async def test_who_may_not_write_reads_all_the_same() -> None:
    assert await followed(WatchedBucket((entry("a"),)), cannot_write) == ["a@1"]
