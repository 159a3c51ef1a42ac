"""Trackers on a NATS server, each with a connection of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

from gguf_worker.node.clock import Clock
from gguf_worker.node.nats import Nats, NatsOptions, connect_nats
from gguf_worker.node.tracker.jetstream import JetStreamSettings, JetStreamTracker
from gguf_worker.node.tracker.tracker import Tracker, View
from gguf_worker.testing.nats import NatsServer

QUICK = JetStreamSettings(timeout_s=2.0, open_s=5.0, quiet_s=0.5, retry_s=0.05)


@asynccontextmanager
async def connected(server: NatsServer) -> AsyncIterator[Nats]:
    """A connection that is back soon after it was lost."""
    options = NatsOptions(servers=(server.url,), backoff_s=(0.02, 0.1))
    async with connect_nats(options) as nats:
        yield nats


@asynccontextmanager
async def tracking(
    server: NatsServer, settings: JetStreamSettings = QUICK, clock: Clock | None = None
) -> AsyncIterator[JetStreamTracker]:
    """A tracker."""
    async with (
        connected(server) as nats,
        JetStreamTracker(nats, settings=settings, clock=clock) as tracker,
    ):
        yield tracker


async def view_where(tracker: Tracker, holds: Callable[[View], bool], timeout_s: float = 10.0) -> View:
    """The first view for which something holds."""
    view = tracker.view()
    with anyio.fail_after(timeout_s):
        while not holds(view):
            view = await tracker.changed(view)
    return view
