"""The tracker on NATS: two readers agree, whatever happens to the server."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import anyio
import pytest

import registered
from gguf_worker.node.tracker.jetstream import CERTIFICATES, NODES, JetStreamTracker
from gguf_worker.node.tracker.registration import LONGEST_LEASE_S
from gguf_worker.node.tracker.tracker import CertificateConflict, Superseded, TrackerError, View
from gguf_worker.testing.nats import NatsServer
from manual_clock import ManualClock
from registered import registration, stage
from tracking import QUICK, connected, tracking, view_where

pytestmark = pytest.mark.anyio


def names(view: View) -> set[str]:
    return set(view.registrations)


def _instance(view: View) -> str:
    return view.registrations["node-a"].instance if view.registrations else ""


async def _publish_for_ever(tracker: JetStreamTracker) -> None:
    """A server that was stopped just now may still answer a little."""
    while True:
        await tracker.publish(registration("node-a", revision=2))


def _is_like(one: View) -> Callable[[View], bool]:
    return lambda view: view.registrations == one.registrations


def _revision(view: View) -> int:
    return view.registrations["node-a"].revision if view.registrations else 0


async def test_two_readers_see_the_same(server: NatsServer) -> None:
    """What one publishes, both see: nodes, changes, certificates, and that a node is withdrawn."""
    async with tracking(server) as one, tracking(server) as two:
        await one.publish(registration("node-a", stage(0, 10)))
        await two.publish(registration("node-b", stage(10, 30)))
        await one.publish_certificate(registered.certificate())
        for tracker in (one, two):
            await view_where(tracker, lambda view: len(names(view)) == 2 and bool(view.certificates))
        assert one.view() == two.view()
        await one.publish(registration("node-a", stage(0, 10), revision=2, draining=True))
        await view_where(two, lambda view: view.registrations["node-a"].draining)
        await two.withdraw("node-b", "run1")
        for tracker in (one, two):
            await view_where(tracker, lambda view: names(view) == {"node-a"})


async def test_reader_that_comes_later_sees_what_was_published(server: NatsServer) -> None:
    """At once: opening waits for it. A node that was withdrawn is not there."""
    async with tracking(server) as one:
        await one.publish(registration("node-a"))
        await one.publish(registration("node-b"))
        await one.publish_certificate(registered.certificate())
        await one.withdraw("node-b", "run1")
        async with tracking(server) as two:
            assert names(two.view()) == {"node-a"}
            assert two.view().certificates


async def test_lease_ends_without_any_word_of_the_server(server: NatsServer) -> None:
    """Of a node that publishes no more, at every reader."""
    async with tracking(server) as one, tracking(server) as two:
        await one.publish(registration("node-a", lease_s=0.3))
        await view_where(two, lambda view: bool(names(view)))
        for tracker in (one, two):
            await view_where(tracker, lambda view: not names(view))


async def test_watch_that_begins_anew_renews_no_lease(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last publication is seen again, several times, and counts once. Whoever wrote it is gone: after a
    lost connection it would write it again."""
    clock = ManualClock()
    async with tracking(server, replace(QUICK, quiet_s=0.05), clock) as tracker:
        async with tracking(server) as writer:
            await writer.publish(registration("node-a"))
        await view_where(tracker, lambda view: bool(names(view)))
        clock.advance(5)
        watch, begun = tracker._nodes.watch, 0
        again = anyio.Event()

        async def watched(*arguments: Any) -> None:
            nonlocal begun
            begun += 1
            if begun == 3:
                again.set()
            await watch(*arguments)

        monkeypatch.setattr(tracker._nodes, "watch", watched)
        with anyio.fail_after(5):
            await again.wait()
        assert tracker.ages() == {"node-a": 5}
        clock.advance(1)
        assert not names(tracker.view())


async def test_lease_runs_by_each_readers_own_clock(server: NatsServer) -> None:
    """From when it saw the publication, and anew from the next one; what others' clocks say is nothing."""
    clock = ManualClock()
    async with tracking(server) as one, tracking(server, clock=clock) as two:
        for revision in (1, 2):
            await one.publish(registration("node-a", revision=revision))
            await view_where(two, lambda view: _revision(view) == revision)  # noqa: B023 - used at once
            clock.advance(5)
        assert two.ages() == {"node-a": 5}
        clock.advance(1)
        assert not names(two.view())
        assert names(one.view()) == {"node-a"}


async def test_later_run_replaces_an_earlier_one(server: NatsServer) -> None:
    """A node that was killed and started again is there at once; the earlier run, where it still lives, is
    told, and its withdrawal takes nothing back."""
    async with tracking(server) as one, tracking(server) as two:
        await one.publish(registration("node-a", instance="old", revision=7))
        await two.publish(registration("node-a", instance="new", revision=1))
        await view_where(one, lambda view: _instance(view) == "new")
        with pytest.raises(Superseded, match="--node"):
            await one.publish(registration("node-a", instance="old", revision=8))
        await one.withdraw("node-a", "old")
        async with tracking(server) as three:
            assert three.view().registrations["node-a"].instance == "new"


async def test_earlier_run_that_did_not_see_the_later_one_is_told(server: NatsServer) -> None:
    """By the comparison, not by what it has read."""
    async with tracking(server) as one, tracking(server) as two:
        await one.publish(registration("node-a", instance="old"))
        await two.publish(registration("node-a", instance="new"))
        with pytest.raises(Superseded):
            await one.publish(registration("node-a", instance="old", revision=2))


async def test_of_many_runs_with_one_name_one_is_left(server: NatsServer) -> None:
    """However their writings meet: the others are told, each once, and every reader has the one."""
    async with AsyncExitStack() as stack:
        trackers = [await stack.enter_async_context(tracking(server)) for _ in range(4)]
        told: list[str] = []
        written: dict[str, int] = {}

        async def run(tracker: JetStreamTracker, instance: str) -> None:
            revision = 1
            while revision < 40 or len(told) < 3:  # one that writes no more would not be told
                try:
                    await tracker.publish(registration("node-a", instance=instance, revision=revision))
                    written[instance] = revision
                    revision += 1
                except TrackerError:  # the others were faster, many times
                    continue
                except Superseded:
                    told.append(instance)
                    return

        async with anyio.create_task_group() as tasks:
            for number, tracker in enumerate(trackers):
                tasks.start_soon(run, tracker, f"run{number}")
        (left,) = {f"run{number}" for number in range(4)} - set(told)
        assert len(told) == 3
        for tracker in trackers:
            await view_where(tracker, lambda view: _revision(view) == written[left] >= 39)
            assert tracker.view().registrations["node-a"].instance == left


async def test_earlier_revision_is_not_written(server: NatsServer) -> None:
    async with tracking(server) as one:
        await one.publish(registration("node-a", revision=3))
        await one.publish(registration("node-a", revision=2))
        async with tracking(server) as two:
            assert two.view().registrations["node-a"].revision == 3


async def test_node_that_was_withdrawn_can_be_started_again(server: NatsServer) -> None:
    async with tracking(server) as one:
        await one.publish(registration("node-a", instance="old"))
        await one.withdraw("node-a", "old")
        await one.publish(registration("node-a", instance="new"))
        view = await view_where(one, lambda view: bool(names(view)))
        assert view.registrations["node-a"].instance == "new"


async def test_server_that_was_killed_is_told_again(server: NatsServer) -> None:
    """What the server lost is written again by who published it, at once; meanwhile what was known stands."""
    async with tracking(server) as one, tracking(server) as two:
        await one.publish(registration("node-a", lease_s=LONGEST_LEASE_S))
        await two.publish(registration("node-b", lease_s=LONGEST_LEASE_S))
        await one.publish_certificate(registered.certificate())
        await view_where(two, lambda view: len(names(view)) == 2)
        await server.kill()
        assert names(two.view()) == {"node-a", "node-b"}
        await server.start()
        async with tracking(server) as three:
            await view_where(three, lambda view: len(names(view)) == 2 and bool(view.certificates))
        await one.publish(registration("node-a", revision=2, lease_s=LONGEST_LEASE_S))
        await view_where(two, lambda view: _revision(view) == 2)


async def test_readers_agree_after_any_number_of_restarts(server: NatsServer) -> None:
    """Each time the server lost all nodes, and each time they are back."""
    async with tracking(server) as one, tracking(server) as two:
        for revision in range(1, 5):
            for tracker, node in ((one, "node-a"), (two, "node-b")):
                await tracker.publish(registration(node, revision=revision, lease_s=LONGEST_LEASE_S))
            await (server.restart() if revision % 2 else server.kill())
            await server.start()
            async with tracking(server) as three:
                view = await view_where(three, lambda view: len(names(view)) == 2)
            assert {found.revision for found in view.registrations.values()} == {revision}
            for tracker in (one, two):
                await view_where(tracker, _is_like(view))


async def test_closing_does_not_wait_for_a_server_that_is_gone(server: NatsServer) -> None:
    async with connected(server) as nats:
        async with JetStreamTracker(nats, settings=QUICK) as one:
            await one.publish(registration("node-a"))
            await server.kill()
            began = anyio.current_time()
        assert anyio.current_time() - began < 1.5


async def test_closing_does_not_wait_for_a_server_that_hangs(server: NatsServer) -> None:
    async with connected(server) as nats:
        try:
            async with JetStreamTracker(nats, settings=QUICK) as one:
                await one.publish(registration("node-a"))
                server.pause()
                began = anyio.current_time()
            assert anyio.current_time() - began < 1.5
        finally:
            server.resume()


async def test_what_could_not_be_published_is_published_after_the_reconnection(server: NatsServer) -> None:
    """Without a connection the error comes at once, and the last attempt is made up for."""
    async with connected(server) as nats, JetStreamTracker(nats, settings=QUICK) as one:
        await server.kill()
        await nats.wait_disconnected()
        with anyio.fail_after(0.5), pytest.raises(TrackerError) as refused:
            await one.publish(registration("node-a"))
        assert refused.value.retryable
        await server.start()
        await view_where(one, lambda view: names(view) == {"node-a"})


async def test_server_that_hangs_is_not_waited_for(server: NatsServer) -> None:
    """Publishing to a server that answers nothing fails within the time that one answer may take."""
    async with tracking(server) as one:
        await one.publish(registration("node-a"))
        server.pause()
        try:
            with anyio.fail_after(QUICK.timeout_s + 1), pytest.raises(TrackerError) as refused:
                await _publish_for_ever(one)
            assert refused.value.retryable
        finally:
            server.resume()
        await view_where(one, lambda view: _revision(view) == 2)


async def test_deleted_bucket_is_made_again(server: NatsServer) -> None:
    """A watch that the server forgot is noticed by its silence."""
    async with connected(server) as nats, tracking(server) as one:
        await one.publish(registration("node-a"))
        await nats.jetstream.delete_key_value(NODES)
        async with tracking(server) as two:
            await view_where(two, lambda view: names(view) == {"node-a"})


async def test_garbage_in_the_bucket_harms_nobody(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once and told of in the view."""
    newer = registration("node-c")
    newer.version.major = 2
    with caplog.at_level(logging.WARNING):
        async with connected(server) as nats, tracking(server) as one:
            store = await nats.jetstream.key_value(NODES)
            for _ in range(2):
                await store.put("node-b", b"\xff\xff")
            await store.put("node-c", newer.SerializeToString())
            await store.put("node-d", registration("node-e").SerializeToString())
            await (await nats.jetstream.key_value(CERTIFICATES)).put("x", b"\xff")
            await one.publish(registration("node-a"))
            view = await view_where(one, lambda view: bool(names(view)) and len(view.refused) == 3)
    assert names(view) == {"node-a"}
    assert "version 2.0" in view.refused["node-c"]
    assert "node-e" in view.refused["node-d"]
    complaints = [one for one in caplog.records if getattr(one, "event", "") == "registration_refused"]
    assert len(complaints) == 3


async def test_certificate_under_another_key_replaces_none(server: NatsServer) -> None:
    """The first one of its id stands."""
    certificate, other = registered.certificate(), registered.certificate(number=1)
    forged = registered.certificate(exact=False)
    forged.id = certificate.id
    async with connected(server) as nats, tracking(server) as one:
        await one.publish_certificate(certificate)
        await (await nats.jetstream.key_value(CERTIFICATES)).put("x", forged.SerializeToString())
        await one.publish_certificate(other)
        view = await view_where(one, lambda view: other.id in view.certificates)
    assert view.certificates[certificate.id] == certificate


async def test_watch_that_is_cancelled_while_it_begins_leaves_nothing(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No subscription that every later connection would renew."""
    async with connected(server) as nats, JetStreamTracker(nats, settings=QUICK) as one:
        reached = anyio.Event()

        async def hangs(*_: object) -> None:
            reached.set()
            await anyio.sleep_forever()

        before = len(nats.client._subs)
        monkeypatch.setattr("nats.js.manager.JetStreamManager.consumer_info", hangs)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one._certificates.watch, lambda _: None, lambda: None, 5.0)
            await reached.wait()
            tasks.cancel_scope.cancel()
        assert len(nats.client._subs) == before


async def test_server_forgets_a_dead_node_with_its_lease(server: NatsServer) -> None:
    """A reader that comes later does not see it."""
    async with connected(server) as nats, tracking(server) as one:
        await one.publish(registration("node-a", lease_s=1))
        await one.publish(registration("node-b", lease_s=6))
        store = await nats.jetstream.key_value(NODES)
        with anyio.fail_after(5):
            while (await store.status()).values > 1:  # noqa: ASYNC110 - the server tells nobody
                await anyio.sleep(0.05)
        async with tracking(server) as two:
            assert names(two.view()) == {"node-b"}


async def test_bucket_with_other_limits_is_amended(server: NatsServer) -> None:
    """Of somebody who made it by hand."""
    async with connected(server) as nats:
        await nats.jetstream.create_key_value(bucket=NODES, history=5, ttl=3600)
        async with JetStreamTracker(nats, settings=QUICK) as tracker:
            await tracker.publish(registration("node-a"))
            status = await (await nats.jetstream.key_value(NODES)).status()
            assert (status.history, status.ttl) == (1, LONGEST_LEASE_S)


async def test_second_certificate_under_an_id_is_refused(server: NatsServer) -> None:
    certificate = registered.certificate()
    other = registered.certificate(exact=False)
    other.id = certificate.id
    async with tracking(server) as one, tracking(server) as two:
        await one.publish_certificate(certificate)
        await two.publish_certificate(certificate)
        with pytest.raises(CertificateConflict):
            await two.publish_certificate(other)
        view = await view_where(two, lambda view: bool(view.certificates))
        assert view.certificates == {certificate.id: certificate}


async def test_server_without_jetstream_is_named_with_the_remedy() -> None:
    async with NatsServer() as server:
        with pytest.raises(TrackerError, match="--jetstream"):
            async with tracking(server, replace(QUICK, timeout_s=0.5, open_s=0.5)):
                pytest.fail("it has nothing to read")
