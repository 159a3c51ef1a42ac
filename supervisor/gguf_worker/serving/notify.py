"""Readiness, status and watchdog for systemd, and whatever else speaks its notification protocol.

The protocol is one datagram of `NAME=value` lines to a socket named in the environment. That is less than a
library would bring along: those that there are need libsystemd's headers, or are not kept any more.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager

import anyio

from gguf_worker._tasks import plain_task_group
from gguf_worker.logs import log_event
from gguf_worker.serving.service import Phase, Service

SEND_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


class Notifier:
    """Sends notifications; does nothing where nobody asked for them."""

    def __init__(self, place: str | None, watchdog_s: float | None) -> None:
        self.watchdog_s = watchdog_s
        """A ping is expected at least so often; None where none is."""
        self._socket = None if place is None else _connected(place)

    @classmethod
    def take(cls, environment: MutableMapping[str, str] = os.environ) -> Notifier:
        """From NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, which are removed: they are for this process,
        and not for those that it starts."""
        place = environment.pop("NOTIFY_SOCKET", None)
        period_us = environment.pop("WATCHDOG_USEC", "")
        pid = environment.pop("WATCHDOG_PID", "")
        is_watched = period_us.isdecimal() and int(period_us) > 0 and pid in ("", str(os.getpid()))
        return cls(place or None, int(period_us) / 1e6 if is_watched else None)

    @property
    def is_listened_to(self) -> bool:
        return self._socket is not None

    async def send(self, *lines: str) -> None:
        """Sends one notification. What keeps it from arriving is logged, and nothing more."""
        if self._socket is None:
            return
        try:
            with anyio.fail_after(SEND_TIMEOUT_S):
                await self._send("\n".join(lines).encode())
        except (OSError, TimeoutError) as error:
            log_event(log, logging.WARNING, "notify_failed", f"NOTIFY_SOCKET: {error or 'nobody reads it'}")

    async def _send(self, datagram: bytes) -> None:
        assert self._socket is not None
        while True:
            try:
                self._socket.send(datagram)
                return
            except BlockingIOError:
                await anyio.wait_writable(self._socket)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


@asynccontextmanager
async def announced(service: Service, notifier: Notifier) -> AsyncIterator[None]:
    """Keeps the service manager informed while this is open."""
    try:
        async with plain_task_group() as tasks:
            if notifier.is_listened_to:
                tasks.start_soon(_announce, service, notifier)
                if notifier.watchdog_s is not None:
                    tasks.start_soon(_feed, notifier, notifier.watchdog_s / 2, lambda: service.is_live)
            yield
            tasks.cancel_scope.cancel()
    finally:
        notifier.close()


async def _announce(service: Service, notifier: Notifier) -> None:
    """READY=1 when every worker was ready for the first time, STOPPING=1 when the drain begins, and a STATUS=
    with every change."""
    told: set[str] = set()
    while True:
        changed = service.next_change()
        lines = [f"STATUS={service.summary()}"]
        news = {Phase.READY: "READY=1", Phase.DRAINING: "STOPPING=1"}.get(service.phase)
        if news is not None and news not in told:
            told.add(news)
            lines.insert(0, news)
        await notifier.send(*lines)
        await changed.wait()


async def _feed(notifier: Notifier, period_s: float, is_live: Callable[[], bool]) -> None:
    """Pings while the event loop turns and every worker is taken care of; otherwise the service manager shall
    find out."""
    while True:
        if is_live():
            await notifier.send("WATCHDOG=1")
        else:
            log_event(log, logging.ERROR, "not_live", "a supervisor is stuck: the watchdog gets no ping")
        await anyio.sleep(period_s)


def _connected(place: str) -> socket.socket | None:
    """A socket connected to a path, or to an abstract name, which begins with `@`."""
    name = "\0" + place[1:] if place.startswith("@") else place
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.setblocking(False)
    try:
        notify.connect(name)
    except OSError as error:
        notify.close()
        log_event(log, logging.WARNING, "notify_failed", f"NOTIFY_SOCKET {place}: {error}")
        return None
    return notify
