"""Runs of one node that write the same key, in any order, with a server that forgets: one is left."""

from __future__ import annotations

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_worker.node.tracker.buckets import Bucket, Conflict, Entry
from gguf_worker.node.tracker.leases import Leases
from gguf_worker.node.tracker.registration import read_registration
from gguf_worker.node.tracker.tracker import Superseded
from gguf_worker.node.tracker.writers import NodeWriter
from manual_clock import ManualClock
from registered import registration

RUNS = 3


class MemoryBucket(Bucket):
    """As the server's: writes are numbered, and compared with the key's last one."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._last = 0

    def lose_everything(self) -> None:
        """As a server that was killed."""
        self._entries, self._last = {}, 0

    def holder(self) -> str | None:
        """The run that the key speaks of."""
        entry = self._entries.get("node-a")
        return None if entry is None or entry.value is None else read_registration(entry.value).instance

    async def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    async def put(self, key: str, value: bytes, *, last: int, ttl_s: float | None = None) -> int:  # noqa: ARG002
        return self._write(key, value, last)

    async def delete(self, key: str, *, last: int) -> None:
        self._write(key, None, last)

    def _write(self, key: str, value: bytes | None, last: int) -> int:
        before = self._entries.get(key)
        if last != (0 if before is None else before.revision):
            raise Conflict
        self._last += 1
        self._entries[key] = Entry(key=key, value=value, revision=self._last, written_at=None)
        return self._last


class Runs:
    """Runs of one node, each in a process of its own, that read nothing and only write."""

    def __init__(self) -> None:
        self.bucket = MemoryBucket()
        clock = ManualClock()
        self._writers = [NodeWriter(self.bucket, Leases(clock), clock) for _ in range(RUNS)]
        self._revisions = [0] * RUNS
        self.over: set[int] = set()
        self.newest: int | None = None

    async def publish(self, number: int) -> None:
        self._revisions[number] += 1
        said = registration("node-a", instance=f"run{number}", revision=self._revisions[number])
        try:
            await self._writers[number].publish(said)
        except Superseded:
            self.over.add(number)
        else:
            assert number not in self.over
            assert self.bucket.holder() == f"run{number}"
            if self._revisions[number] == 1:
                self.newest = number

    async def withdraw(self, number: int) -> None:
        await self._writers[number].withdraw("node-a", f"run{number}")
        assert self.bucket.holder() != f"run{number}"

    async def reconnect(self) -> None:
        """After the server was killed: everybody writes what it lost, in the order of their numbers."""
        self.bucket.lose_everything()
        for writer in self._writers:
            await writer.write_again()


@given(st.lists(st.integers(0, RUNS - 1), min_size=1, max_size=12))
@settings(deadline=None)
def test_run_that_came_last_is_left(order: list[int]) -> None:
    """Of all that publish, and go on publishing."""

    async def run() -> None:
        runs = Runs()
        for number in order:
            await runs.publish(number)
        started = set(order)
        for number in sorted(started) * 2:
            await runs.publish(number)
        assert started - runs.over == {runs.newest}
        assert runs.bucket.holder() == f"run{runs.newest}"

    anyio.run(run)


@given(st.lists(st.one_of(st.integers(0, RUNS - 1), st.just("server lost all")), max_size=16))
@settings(deadline=None)
def test_one_run_is_left_whatever_the_server_forgets(steps: list[int | str]) -> None:
    """Never two, and never none."""

    async def run() -> None:
        runs = Runs()
        for step in steps:
            await (runs.publish(step) if isinstance(step, int) else runs.reconnect())
        for number in list(range(RUNS)) * 2:
            await runs.publish(number)
        (left,) = set(range(RUNS)) - runs.over
        assert runs.bucket.holder() == f"run{left}"

    anyio.run(run)


@given(st.permutations(range(RUNS)), st.permutations(range(RUNS)))
@settings(deadline=None)
def test_withdrawal_takes_back_its_own_run_only(starts: list[int], ends: list[int]) -> None:
    """The run that has the name keeps it until it is withdrawn itself."""

    async def run() -> None:
        runs = Runs()
        for number in starts:
            await runs.publish(number)
        for number in ends:
            if runs.newest not in ends[: ends.index(number)]:
                assert runs.bucket.holder() == f"run{runs.newest}"
            await runs.withdraw(number)
        assert runs.bucket.holder() is None

    anyio.run(run)
