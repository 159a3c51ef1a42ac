"""How a node stays registered."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from gguf_worker.node.tracker.memory import MemoryTracker
from gguf_worker.node.tracker.renewal import LEAST_INTERVAL_S, register_and_renew
from gguf_worker.node.tracker.tracker import Superseded, TrackerError
from gguf_worker_v1 import registration_pb2
from manual_clock import ManualClock
from registered import registration, stage
from tracking import view_where

pytestmark = pytest.mark.anyio


class Node:
    """Says what it is told to say."""

    def __init__(self, instance: str = "run1") -> None:
        self._said = registration("node-a", stage(0, 30), instance=instance, revision=0)
        self._changed = anyio.Event()

    def describe(self) -> registration_pb2.Registration:
        return self._said

    async def wait_for_change(self) -> None:
        await self._changed.wait()

    def change(self, sessions: int) -> None:
        self._said.stages[0].load.sessions = sessions
        self._changed.set()
        self._changed = anyio.Event()


class FailingTracker(MemoryTracker):
    """Cannot be told anything while `fails`."""

    fails = True

    async def publish(self, registration: registration_pb2.Registration) -> None:
        if self.fails:
            raise TrackerError("it is away", retryable=True)
        await super().publish(registration)

    async def withdraw(self, node: str, instance: str) -> None:
        if self.fails:
            raise TrackerError("it is away", retryable=True)
        await super().withdraw(node, instance)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@asynccontextmanager
async def renewing(tracker: MemoryTracker, node: Node, clock: ManualClock) -> AsyncIterator[None]:
    """Registered inside."""
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:

            async def renew() -> None:
                await register_and_renew(tracker, node.describe, node.wait_for_change, clock=clock)

            tasks.start_soon(renew)
            yield
            tasks.cancel_scope.cancel()


async def test_lease_is_renewed_until_the_end(clock: ManualClock) -> None:
    """For longer than a lease; then the node is withdrawn."""
    tracker, node = MemoryTracker(clock), Node()
    async with renewing(tracker, node, clock):
        before = await view_where(tracker, lambda view: bool(view.registrations))
        for _ in range(5):
            await clock.someone_sleeps_until(clock.now() + 2.0)
            clock.advance(2.0)
        assert tracker.view() is before
    assert not tracker.view().registrations


async def test_change_is_published_at_once_with_a_higher_revision(clock: ManualClock) -> None:
    """And nothing else has a higher one."""
    tracker, node = MemoryTracker(clock), Node()
    async with renewing(tracker, node, clock):
        await view_where(tracker, lambda view: bool(view.registrations))
        await clock.someone_sleeps_until(clock.now() + 2.0)
        clock.advance(2.0)
        await clock.someone_sleeps_until(clock.now() + 2.0)
        assert tracker.view().registrations["node-a"].revision == 1
        node.change(sessions=3)
        view = await view_where(tracker, lambda view: view.registrations["node-a"].revision == 2)
        assert view.registrations["node-a"].stages[0].load.sessions == 3


async def test_many_changes_are_few_publications(clock: ManualClock) -> None:
    """What changes within the shortest interval waits for its end, and is not missed."""
    tracker, node = MemoryTracker(clock), Node()
    async with renewing(tracker, node, clock):
        await view_where(tracker, lambda view: bool(view.registrations))
        node.change(sessions=1)
        await view_where(tracker, lambda view: view.registrations["node-a"].revision == 2)
        await clock.someone_sleeps_until(clock.now() + LEAST_INTERVAL_S)
        for sessions in (2, 3, 4):
            node.change(sessions)
        assert tracker.view().registrations["node-a"].revision == 2
        clock.advance(2.0)
        view = await view_where(tracker, lambda view: view.registrations["node-a"].revision == 3)
        assert view.registrations["node-a"].stages[0].load.sessions == 4


async def test_tracker_that_is_away_is_tried_again(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """At each heartbeat; the failure is logged once."""
    tracker, node = FailingTracker(clock), Node()
    with caplog.at_level(logging.INFO):
        async with renewing(tracker, node, clock):
            for _ in range(3):
                await clock.someone_sleeps_until(clock.now() + 2.0)
                clock.advance(2.0)
            await clock.someone_sleeps_until(clock.now() + 2.0)
            tracker.fails = False
            clock.advance(2.0)
            await view_where(tracker, lambda view: bool(view.registrations))
    events = [getattr(record, "event", "") for record in caplog.records]
    assert events == ["registration_failed", "registered", "withdrawn"]


async def test_end_does_not_hang_on_a_tracker_that_is_away(clock: ManualClock) -> None:
    tracker, node = FailingTracker(clock), Node()
    async with renewing(tracker, node, clock):
        await clock.someone_sleeps_until(clock.now() + 2.0)


async def test_node_whose_name_was_taken_is_told(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It ends, and leaves the later one in its place."""
    caplog.set_level(logging.INFO)
    tracker, node = MemoryTracker(clock), Node("old")

    async def take_over() -> None:
        await view_where(tracker, lambda view: bool(view.registrations))
        await tracker.publish(registration("node-a", instance="new"))
        await clock.someone_sleeps_until(clock.now() + 2.0)
        clock.advance(2.0)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take_over)
            with pytest.raises(Superseded, match="node-a"):
                await register_and_renew(tracker, node.describe, node.wait_for_change, clock=clock)
    assert tracker.view().registrations["node-a"].instance == "new"
    events = [getattr(record, "event", "") for record in caplog.records]
    assert events == ["registered", "superseded"]
