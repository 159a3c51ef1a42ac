"""Whose lease runs, by the reader's clock, and which run of a node is the last one."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import registered
from gguf_worker.node.tracker.leases import MAX_NODES, Leases
from manual_clock import ManualClock
from registered import registration, stage


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def leases(clock: ManualClock) -> Leases:
    return Leases(clock)


def test_lease_ends_by_the_readers_clock(leases: Leases, clock: ManualClock) -> None:
    """It stands until its time is over, counted from when it was seen."""
    leases.saw(registration("node-a", lease_s=6.0))
    clock.advance(5.99)
    assert set(leases.view().registrations) == {"node-a"}
    clock.advance(0.01)
    assert not leases.view().registrations


def test_publishing_again_renews(leases: Leases, clock: ManualClock) -> None:
    """Each publication counts from its own moment, and its age is known."""
    leases.saw(registration("node-a"))
    clock.advance(5)
    leases.saw(registration("node-a"))
    clock.advance(4)
    assert leases.ages() == {"node-a": 4}
    assert set(leases.view().registrations) == {"node-a"}


def test_view_is_the_same_object_until_something_differs(leases: Leases, clock: ManualClock) -> None:
    """A renewed lease alone is no news."""
    leases.saw(registration("node-a"))
    before = leases.view()
    clock.advance(1)
    leases.saw(registration("node-a"))
    assert leases.view() is before
    leases.saw(registration("node-a", revision=2, draining=True))
    assert leases.view() is not before


def test_earlier_revision_replaces_nothing(leases: Leases) -> None:
    """A publication that was overtaken is dropped, and renews nothing."""
    leases.saw(registration("node-a", stage(0, 10), revision=5))
    assert not leases.saw(registration("node-a", revision=4))
    assert leases.view().registrations["node-a"].revision == 5


def test_earlier_run_never_comes_back(leases: Leases) -> None:
    """Once another run of the node was seen, the one before it is over, whatever its revision."""
    leases.saw(registration("node-a", instance="old", revision=90))
    leases.saw(registration("node-a", instance="new", revision=1))
    assert not leases.saw(registration("node-a", instance="old", revision=91))
    assert leases.view().registrations["node-a"].instance == "new"
    assert leases.is_over("node-a", "old")


def test_withdrawn_run_never_comes_back(leases: Leases) -> None:
    """A publication that arrives after the withdrawal is late."""
    leases.saw(registration("node-a"))
    leases.withdrawn("node-a", "run1")
    assert not leases.saw(registration("node-a", revision=2))
    assert not leases.view().registrations


def test_withdrawal_of_an_earlier_run_leaves_the_later_one(leases: Leases) -> None:
    leases.saw(registration("node-a", instance="new"))
    leases.withdrawn("node-a", "old")
    assert set(leases.view().registrations) == {"node-a"}


def test_refused_publication_is_told_until_its_lease_ends(leases: Leases, clock: ManualClock) -> None:
    """It takes the place of no registration that stands."""
    leases.saw(registration("node-a"))
    leases.refused("node-a", "garbage")
    leases.refused("node-b", "garbage")
    assert set(leases.view().registrations) == {"node-a"}
    assert leases.view().refused == {"node-b": "garbage"}
    clock.advance(60)
    assert not leases.view().refused


def test_number_of_nodes_is_bounded(leases: Leases, clock: ManualClock) -> None:
    """What would be too many is not taken, and is as soon as others are gone."""
    for number in range(MAX_NODES):
        leases.saw(registration(f"node-{number}"))
    assert not leases.saw(registration("one-more"))
    clock.advance(60)
    assert leases.saw(registration("one-more"))


def test_renewal_is_no_change(leases: Leases, clock: ManualClock) -> None:
    """It costs nothing for the other nodes: who waits looks again when the first lease may have ended, and
    then for the next one that really ends."""
    leases.saw(registration("node-a", lease_s=6.0))
    leases.saw(registration("node-b", lease_s=9.0))
    before, view = leases.changes, leases.view()
    clock.advance(4.0)
    leases.saw(registration("node-a", lease_s=6.0))
    assert leases.changes == before
    assert leases.next_look() == 1006.0
    clock.advance(2.0)
    assert leases.view() is view
    assert leases.next_look() == 1009.0
    clock.advance(3.0)
    assert set(leases.view().registrations) == {"node-a"}
    assert leases.changes == before + 1


def test_certificates_stay(leases: Leases, clock: ManualClock) -> None:
    """Until they are taken back."""
    certificate = registered.certificate()
    leases.saw_certificate(certificate)
    clock.advance(1e6)
    assert leases.view().certificates == {certificate.id: certificate}
    leases.lost_certificate(certificate.id)
    assert not leases.view().certificates


@given(st.lists(st.tuples(st.sampled_from(["run1", "run2"]), st.integers(1, 3)), min_size=1, max_size=8))
def test_view_never_goes_back(published: list[tuple[str, int]]) -> None:
    """In whatever order publications of two runs arrive, and however often: revisions of a run only rise,
    and the run that was seen first does not come back after the other one."""
    leases = Leases(ManualClock())
    seen: list[tuple[str, int]] = []
    for instance, revision in published:
        leases.saw(registration("node-a", instance=instance, revision=revision))
        now = leases.view().registrations["node-a"]
        seen.append((now.instance, now.revision))
    runs = [instance for instance, _ in seen]
    assert runs == sorted(runs, key=runs.index)
    for run in set(runs):
        revisions = [revision for instance, revision in seen if instance == run]
        assert revisions == sorted(revisions)


def test_order_of_two_nodes_does_not_matter() -> None:
    """Any order of publications of different nodes gives the same view."""
    several = [registration("node-a", stage(0, 10)), registration("node-b"), registration("node-c")]
    views = []
    for order in permutations(several):
        leases = Leases(ManualClock())
        for one in order:
            leases.saw(one)
        views.append(leases.view())
    assert all(
        view == views[0] and list(view.registrations) == list(views[0].registrations) for view in views
    )
