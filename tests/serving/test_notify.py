"""Notifications for a service manager."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import anyio
import pytest

from gguf_worker.serving import notify
from gguf_worker.serving.notify import Notifier, announced
from gguf_worker.serving.service import Service

pytestmark = pytest.mark.anyio


@contextmanager
def manager(place: str) -> Iterator[socket.socket]:
    """Listens as a service manager does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + place[1:] if place.startswith("@") else place)
        listener.settimeout(20)
        yield listener


@pytest.mark.parametrize("is_abstract", [False, True])
async def test_notification_arrives(is_abstract: bool) -> None:
    """At a path and at an abstract name; the variables are taken out of the environment."""
    with tempfile.TemporaryDirectory() as folder:
        place = f"@{uuid4().hex}" if is_abstract else str(Path(folder) / "notify")
        environment = {"NOTIFY_SOCKET": place, "WATCHDOG_USEC": "3000000", "OTHER": "stays"}
        with manager(place) as listener:
            notifier = Notifier.take(environment)
            await notifier.send("READY=1", "STATUS=all is well")
            assert listener.recv(100) == b"READY=1\nSTATUS=all is well"
            notifier.close()
    assert environment == {"OTHER": "stays"}
    assert notifier.watchdog_s == 3.0


@pytest.mark.parametrize(
    ("environment", "watchdog_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": str(os.getpid())}, 0.5),
    ],
)
async def test_watchdog_is_for_the_process_that_is_named(
    environment: dict[str, str], watchdog_s: float | None
) -> None:
    """Anything else asks for none."""
    notifier = Notifier.take(environment)
    assert notifier.watchdog_s == watchdog_s
    assert not notifier.is_listened_to
    await notifier.send("READY=1")  # to nobody, which is no error


async def test_manager_that_is_gone_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, whether it never was there or went away."""
    with tempfile.TemporaryDirectory() as folder:
        place = str(Path(folder) / "notify")
        Notifier.take({"NOTIFY_SOCKET": place}).close()
        with manager(place):
            notifier = Notifier.take({"NOTIFY_SOCKET": place})
        await notifier.send("READY=1")
        notifier.close()
    assert [vars(record)["event"] for record in caplog.records] == ["notify_failed"] * 2


async def test_manager_that_reads_nothing_holds_up_nobody_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """When its queue is full, a notification waits for a while and is given up; there may be room later."""
    monkeypatch.setattr(notify, "SEND_TIMEOUT_S", 0.1)
    place = f"@{uuid4().hex}"
    with manager(place) as listener:
        notifier = Notifier.take({"NOTIFY_SOCKET": place})
        n_sent = 0
        with anyio.fail_after(20):
            while not caplog.records:
                await notifier.send(f"STATUS={n_sent}")
                n_sent += 1
        for number in range(n_sent - 1):
            assert listener.recv(100) == f"STATUS={number}".encode()
        await notifier.send("READY=1")
        assert listener.recv(100) == b"READY=1"
        notifier.close()


class Stuck(Service):
    """A service of which a supervisor does nothing any more."""

    is_live = False


async def test_watchdog_is_not_fed_while_a_supervisor_is_stuck(caplog: pytest.LogCaptureFixture) -> None:
    """The service manager shall find out, and the log says why."""
    place = f"@{uuid4().hex}"
    with manager(place) as listener:
        listener.setblocking(False)
        environment = {"NOTIFY_SOCKET": place, "WATCHDOG_USEC": "20000"}
        async with announced(Stuck("fake"), Notifier.take(environment)):
            with anyio.fail_after(20):
                while len(caplog.records) < 3:  # noqa: ASYNC110 - nobody tells of a line of the log
                    await anyio.sleep(0.01)
        assert listener.recv(100) == b"STATUS=starting: fake"
        with pytest.raises(BlockingIOError):
            listener.recv(100)
    assert {vars(record)["event"] for record in caplog.records} == {"not_live"}
