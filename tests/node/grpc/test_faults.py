"""Peers that die, fall silent or do not read; and workers that are started beside gRPC."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import SocketStream

from fakes import PROMPT, SETTINGS, spec
from gguf_worker import Supervisor
from gguf_worker.errors import WorkerDied
from gguf_worker.node.grpc import GrpcClientOptions, GrpcDialer, GrpcLimits, GrpcOptions
from gguf_worker.node.transport import Transport, TransportClosed
from node.grpc.rigs import TIMEOUT_S, EchoService, echoed, ended, node

pytestmark = pytest.mark.anyio

TESTS = Path(__file__).parents[2]
ECHO_NODE = Path(__file__).with_name("echo_node.py")
WATCHFUL = GrpcLimits(keepalive_s=0.2, keepalive_timeout_s=0.2)
MIB = bytes(1024 * 1024)


# ---- a peer that is gone --------------------------------------------------------------------------


async def test_a_node_that_is_killed_in_the_middle_of_a_stream() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    async with await anyio.open_process([sys.executable, ECHO_NODE], env=environment) as process:
        assert process.stdout is not None
        address = (await process.stdout.receive()).decode().strip()
        async with GrpcDialer() as dialer:
            stream = await dialer.connect(address, timeout_s=TIMEOUT_S)
            assert await echoed(stream)
            process.send_signal(signal.SIGKILL)
            error = await ended(stream)
            assert (error.code, error.retryable) == ("lost", True)
            with pytest.raises(TransportClosed, match="the stream is lost"):
                await stream.send(b"x")
            with pytest.raises(TransportClosed) as caught:
                await dialer.connect(address, timeout_s=TIMEOUT_S)
            assert caught.value.code == "unreachable"


@dataclass
class Wire:
    """A way to a node that can be cut without either end being told."""

    port: int
    is_cut: bool = False

    async def carry(self, near: SocketStream, far: SocketStream) -> None:
        async for data in near:
            if not self.is_cut:
                await far.send(data)


@asynccontextmanager
async def wire_to(address: str) -> AsyncIterator[Wire]:
    host, _, port = address.rpartition(":")
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    wire = Wire(listener.extra(anyio.abc.SocketAttribute.local_port))

    async def accept(near: SocketStream) -> None:
        async with near, await anyio.connect_tcp(host, int(port)) as far, anyio.create_task_group() as both:
            both.start_soon(wire.carry, near, far)
            both.start_soon(wire.carry, far, near)

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, accept)
        yield wire
        tasks.cancel_scope.cancel()


async def test_a_peer_that_falls_silent_is_found_by_both_ends() -> None:
    """A machine that lost its power, or a network that drops everything: nobody closes anything."""
    options = GrpcOptions(limits=WATCHFUL, grace_s=0.0)
    async with (
        node(options=options) as running,
        wire_to(running.address) as wire,
        GrpcDialer(GrpcClientOptions(limits=WATCHFUL)) as dialer,
    ):
        stream = await dialer.connect(f"127.0.0.1:{wire.port}", timeout_s=TIMEOUT_S)
        assert await echoed(stream)
        wire.is_cut = True
        assert (await ended(stream)).code == "lost"
        with anyio.fail_after(TIMEOUT_S):
            await running.service.ended.wait()
        assert running.service.ends == ["closed"]


def test_silence_is_found_within_ten_seconds_by_default() -> None:
    limits = GrpcLimits()
    assert limits.keepalive_s + limits.keepalive_timeout_s <= 10.0


# ---- a peer that does not read ----------------------------------------------------------------------


class Talker(EchoService):
    """Sends for ever to whoever says `talk`."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0

    async def answer(self, transport: Transport, frame: bytes) -> None:
        while frame == b"talk":
            await transport.send(MIB)
            self.sent += 1
        await super().answer(transport, frame)


async def test_a_client_that_never_reads_holds_up_its_own_stream_only() -> None:
    """What the node has sent stays bounded; other streams, on the same connection too, go on meanwhile."""
    talker = Talker()
    async with node(talker) as running:
        silent, other = await running.connect(), await running.connect()
        await silent.send(b"talk")
        before = -1
        while talker.sent != before:  # until what the windows and sockets hold is full
            before = talker.sent
            assert before <= 64
            for _ in range(100):
                assert await echoed(other, bytes(64 * 1024))
        for _ in range(before + 5):
            assert await silent.receive() == MIB  # it was only held up


class Deaf(EchoService):
    """Never reads after the first frame of a stream that says so."""

    async def answer(self, transport: Transport, frame: bytes) -> None:
        if frame == b"deaf":
            await anyio.sleep_forever()
        await super().answer(transport, frame)


async def test_a_node_that_does_not_read_holds_up_the_client() -> None:
    """Sending waits, and nothing piles up on either side."""
    sent = 0

    async def flood(stream: Transport) -> None:
        nonlocal sent
        while True:
            await stream.send(MIB)
            sent += 1

    async with node(Deaf()) as running:
        deaf, other = await running.connect(), await running.connect()
        await deaf.send(b"deaf")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(flood, deaf)
            for _ in range(50):
                assert await echoed(other, bytes(64 * 1024))
            assert sent <= 32
            tasks.cancel_scope.cancel()
        await deaf.aclose()


# ---- connections ----------------------------------------------------------------------------------


async def test_a_dial_that_is_cancelled_leaves_nothing() -> None:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as silent, GrpcDialer() as dialer:
        port = silent.extra(anyio.abc.SocketAttribute.local_port)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: dialer.connect(f"127.0.0.1:{port}", timeout_s=TIMEOUT_S))
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()


async def test_a_connection_that_nobody_uses_is_closed() -> None:
    idle = GrpcClientOptions(limits=GrpcLimits(idle_s=0.05))
    async with node(client=idle) as running:
        stream = await running.connect()
        assert await echoed(stream)
        await stream.aclose()
        with anyio.fail_after(TIMEOUT_S):
            while running.dialer._lines:  # noqa: ASYNC110 - a timer ends it
                await anyio.sleep(0.01)
        assert await echoed(await running.connect())


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})], ids=["uvloop"])
async def test_the_other_event_loop() -> None:
    async with node() as running:
        stream = await running.connect()
        assert await echoed(stream, MIB)
        await running.server.drain()
        await stream.aclose()


async def test_a_node_that_is_cancelled_anywhere_leaves_nothing() -> None:
    """Start, dial, echo and stop, cancelled after every number of turns of the event loop that they take."""

    over = anyio.Event()

    async def life() -> None:
        async with node() as running:
            stream = await running.connect()
            assert await echoed(stream)
            await stream.aclose()
        over.set()

    turns = 0
    while not over.is_set():
        with anyio.fail_after(TIMEOUT_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(life)
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
        turns += 1


async def test_more_connections_than_the_node_takes_are_closed() -> None:
    options = GrpcOptions(limits=GrpcLimits(max_connections=2), grace_s=0.0)
    async with node(options=options) as running:
        stream = await running.connect()
        host, _, port = running.address.rpartition(":")
        async with await anyio.connect_tcp(host, int(port)) as second:
            assert await second.receive()  # HTTP/2's first frame
            async with await anyio.connect_tcp(host, int(port)) as third:
                with (
                    anyio.fail_after(TIMEOUT_S),
                    pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)),
                ):
                    await third.receive()
        assert await echoed(stream)


# ---- workers beside gRPC ----------------------------------------------------------------------------


def descriptors_of(pid: int) -> list[str]:
    return [str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir()]


async def test_workers_start_and_restart_beside_grpc(capfd: pytest.CaptureFixture[str]) -> None:
    """No fork handler of gRPC gets in the way, and no worker inherits a connection."""
    settings = replace(SETTINGS, restart=PROMPT)
    supervisor = Supervisor(spec(), settings=settings)
    async with node() as running, supervisor:
        stream = await running.connect()
        for _ in range(3):
            assert await echoed(stream)
            with anyio.fail_after(TIMEOUT_S):
                worker = await supervisor.wait_ready()
            assert not [name for name in descriptors_of(worker.pid) if name.startswith(("socket:", "anon_"))]
            async with await worker.open_session() as session:
                assert (await session.forward(tokens=[2, 3], output="token")).length == 2
                os.kill(worker.pid, signal.SIGKILL)
                with pytest.raises(WorkerDied):
                    await session.forward(tokens=[4], output="token")
        assert await echoed(stream)
    assert "fork" not in capfd.readouterr().err
