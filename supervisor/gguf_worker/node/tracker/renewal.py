"""How a node stays registered: it publishes when something changes and at every heartbeat, and withdraws."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio

from gguf_worker._tasks import plain_task_group
from gguf_worker.errors import GgufWorkerError
from gguf_worker.logs import log_event
from gguf_worker.node.clock import Clock, MonotonicClock
from gguf_worker.node.tracker.tracker import Superseded, Tracker
from gguf_worker_v1 import registration_pb2

log = logging.getLogger(__name__)

DEFAULT_HEARTBEAT_S = 2.0
LEAST_INTERVAL_S = 0.05
"""Between two publications, however much changes."""
WITHDRAW_S = 3.0
"""How long the end waits for the tracker."""


async def register_and_renew(
    tracker: Tracker,
    describe: Callable[[], registration_pb2.Registration],
    wait_for_change: Callable[[], Awaitable[None]],
    *,
    heartbeat_s: float = DEFAULT_HEARTBEAT_S,
    clock: Clock | None = None,
) -> None:
    """Keeps a node registered until it is cancelled, and withdraws it then. Revisions are counted here.

    A tracker that cannot be told is tried again at the next heartbeat. Raises Superseded where another node
    took the name.
    """
    renewal = _Renewal(tracker, describe, heartbeat_s, clock or MonotonicClock())
    try:
        async with plain_task_group() as tasks:
            tasks.start_soon(renewal.note_changes, wait_for_change)
            await renewal.run()
    finally:
        await renewal.withdraw()


class _Renewal:
    """One node's registration."""

    def __init__(
        self,
        tracker: Tracker,
        describe: Callable[[], registration_pb2.Registration],
        heartbeat_s: float,
        clock: Clock,
    ) -> None:
        self._tracker = tracker
        self._describe = describe
        self._heartbeat_s = heartbeat_s
        self._clock = clock
        self._changed = anyio.Event()
        self._last = registration_pb2.Registration()
        self._is_registered = False
        self._has_failed = False

    async def note_changes(self, wait_for_change: Callable[[], Awaitable[None]]) -> None:
        """Waits beside the publications, so that what changes during one is not missed."""
        while True:
            await wait_for_change()
            self._changed.set()
            await self._clock.sleep_until(self._clock.now() + LEAST_INTERVAL_S)

    async def run(self) -> None:
        """Publishes, again and again."""
        while True:
            self._changed = anyio.Event()
            self._last = self._next()
            await self._publish()
            await self._wait_until(self._clock.now() + self._heartbeat_s)

    def _next(self) -> registration_pb2.Registration:
        """What the node is now; the revision rises where that differs from what was published last."""
        registration = registration_pb2.Registration()
        registration.CopyFrom(self._describe())
        registration.revision = self._last.revision
        if registration != self._last:
            registration.revision += 1
        return registration

    async def _publish(self) -> None:
        node = self._last.node
        try:
            await self._tracker.publish(self._last)
        except Superseded as error:
            log_event(log, logging.ERROR, "superseded", error.message, node=node)
            self._last = registration_pb2.Registration()  # nothing of this run is left
            raise
        except GgufWorkerError as error:
            level = logging.DEBUG if self._has_failed else logging.WARNING
            self._is_registered, self._has_failed = False, True
            text = f"{node} could not be registered, and is tried again: {error.message}"
            log_event(log, level, "registration_failed", text, node=node, code=error.code)
            return
        self._log_success(node)
        self._is_registered, self._has_failed = True, False

    def _log_success(self, node: str) -> None:
        revision, n_stages = self._last.revision, len(self._last.stages)
        if self._is_registered:
            log_event(
                log, logging.DEBUG, "lease_renewed", f"{node} is registered", node=node, revision=revision
            )
        else:
            text = f"{node} is registered with {n_stages} stages"
            log_event(log, logging.INFO, "registered", text, node=node, revision=revision, stages=n_stages)

    async def _wait_until(self, moment: float) -> None:
        """Returns at the moment, or when something has changed."""
        async with plain_task_group() as tasks:

            async def wake() -> None:
                await self._clock.sleep_until(moment)
                tasks.cancel_scope.cancel()

            tasks.start_soon(wake)
            await self._changed.wait()
            tasks.cancel_scope.cancel()

    async def withdraw(self) -> None:
        """Takes back whatever was published, or may have been, bounded."""
        node, instance = self._last.node, self._last.instance
        if not node:  # nothing was
            return
        with anyio.CancelScope(shield=True):
            try:
                with anyio.fail_after(WITHDRAW_S):
                    await self._tracker.withdraw(node, instance)
            except (GgufWorkerError, TimeoutError) as error:
                text = f"{node} could not be withdrawn; its lease ends by itself: {error}"
                log_event(log, logging.WARNING, "withdrawal_failed", text, node=node)
            else:
                log_event(log, logging.INFO, "withdrawn", f"{node} is not registered any more", node=node)
