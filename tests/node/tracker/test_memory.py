"""The tracker of one process: views, waiting, leases, and what is refused."""

from __future__ import annotations

import anyio
import pytest

import registered
from gguf_worker.node.tracker.memory import MemoryTracker
from gguf_worker.node.tracker.registration import RegistrationRefused
from gguf_worker.node.tracker.tracker import CertificateConflict, Superseded, View
from manual_clock import ManualClock
from registered import registration, stage

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def tracker(clock: ManualClock) -> MemoryTracker:
    return MemoryTracker(clock)


async def test_what_is_published_is_in_the_view(tracker: MemoryTracker) -> None:
    """As a copy: what its publisher does to it later is no news."""
    published = registration("node-a", stage(0, 30))
    await tracker.publish(published)
    published.draining = True
    assert not tracker.view().registrations["node-a"].draining


async def test_waiting_ends_with_a_publication(tracker: MemoryTracker) -> None:
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tracker.publish, registration("node-a"))
            assert set((await tracker.changed(tracker.view())).registrations) == {"node-a"}


async def test_waiting_returns_at_once_for_an_earlier_view(tracker: MemoryTracker) -> None:
    before = tracker.view()
    await tracker.publish(registration("node-a"))
    with anyio.fail_after(5):
        assert (await tracker.changed(before)).registrations


async def test_waiting_ends_with_a_lease(tracker: MemoryTracker, clock: ManualClock) -> None:
    """Nobody publishes; the clock alone wakes whoever waits. A renewal in between ends no wait."""
    await tracker.publish(registration("node-a", lease_s=6))
    seen: list[View] = []

    async def wait() -> None:
        seen.append(await tracker.changed(tracker.view()))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await clock.someone_sleeps_until(1006.0)
            clock.advance(5)
            await tracker.publish(registration("node-a", lease_s=6))
            clock.advance(1)
            await clock.someone_sleeps_until(1011.0)
            assert not seen
            clock.advance(5)
    assert not seen[0].registrations


async def test_waiting_can_be_cancelled(tracker: MemoryTracker) -> None:
    await tracker.publish(registration("node-a"))
    with anyio.move_on_after(0.01) as scope:
        await tracker.changed(tracker.view())
    assert scope.cancelled_caught


async def test_later_run_of_a_node_wins_and_the_earlier_one_is_told(tracker: MemoryTracker) -> None:
    await tracker.publish(registration("node-a", instance="old"))
    await tracker.publish(registration("node-a", instance="new"))
    with pytest.raises(Superseded, match="--node"):
        await tracker.publish(registration("node-a", instance="old", revision=2))
    await tracker.withdraw("node-a", "old")
    assert tracker.view().registrations["node-a"].instance == "new"


async def test_withdrawn_node_is_gone(tracker: MemoryTracker) -> None:
    await tracker.publish(registration("node-a"))
    await tracker.withdraw("node-a", "run1")
    await tracker.withdraw("node-a", "run1")
    assert not tracker.view().registrations


async def test_what_is_no_registration_is_refused(tracker: MemoryTracker) -> None:
    with pytest.raises(RegistrationRefused):
        await tracker.publish(registration("no name"))


async def test_second_certificate_under_an_id_is_refused(tracker: MemoryTracker) -> None:
    """The same one again is nothing new."""
    certificate = registered.certificate()
    await tracker.publish_certificate(certificate)
    await tracker.publish_certificate(certificate)
    other = registered.certificate(exact=False)
    other.id = certificate.id
    with pytest.raises(CertificateConflict, match=certificate.id):
        await tracker.publish_certificate(other)
    assert tracker.view().certificates == {certificate.id: certificate}
