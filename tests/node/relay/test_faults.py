"""Links while NATS, the network and third parties misbehave."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import anyio.lowlevel
import pytest
from nats.aio.msg import Msg

from gguf_worker.node.nats import Nats, NatsOptions, connect_nats
from gguf_worker.node.relay.chunk import HEADER
from gguf_worker.node.relay.dialer import RelayDialer
from gguf_worker.node.relay.link import LinkLimits, LinkTimers
from gguf_worker.node.relay.listener import relay_listener
from gguf_worker.node.relay.subjects import up_subject
from gguf_worker.node.relay.transport import RelayTransport
from gguf_worker.node.transport import TransportClosed
from gguf_worker.testing.nats import NatsServer
from gguf_worker.testing.proxy import Proxy, proxy_to
from node.relay.conftest import options
from node.relay.services import Echo, Held

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
TIMERS = LinkTimers(retransmit_s=0.05, heartbeat_s=0.1, silence_s=5.0, absence_s=2.0)
HASTY = replace(TIMERS, silence_s=0.4, absence_s=0.2)


@asynccontextmanager
async def linked(
    node_nats: Nats,
    client_nats: Nats,
    service: Echo | Held,
    *,
    timers: LinkTimers = TIMERS,
    limits: LinkLimits | None = None,
) -> AsyncIterator[RelayTransport]:
    """A link to a node `node-1`."""
    async with relay_listener(node_nats, "node-1", service, timers=timers, limits=limits):
        dialer = RelayDialer(client_nats, timers=timers, limits=limits)
        transport = await dialer.connect("node-1", timeout_s=5)
        try:
            yield transport
        finally:
            await transport.aclose()


async def first_steps() -> None:
    """Whatever was started does what it can without news from elsewhere."""
    for _ in range(20):
        await anyio.lowlevel.checkpoint()


async def echoes(transport: RelayTransport, frame: bytes) -> None:
    await transport.send(frame)
    assert await transport.receive() == frame


async def test_a_stream_survives_the_death_of_the_nats_server(
    server: NatsServer, node_nats: Nats, client_nats: Nats
) -> None:
    """Killed with everything that is under way in it; that is sent again."""
    frame = os.urandom(5 * MIB)
    async with linked(node_nats, client_nats, Echo()) as transport:
        for _ in range(2):
            async with anyio.create_task_group() as tasks:
                server.pause()
                tasks.start_soon(transport.send, frame)
                await first_steps()
                await server.kill()
                await client_nats.wait_disconnected()
                await server.start()
            assert await transport.receive() == frame


async def test_links_of_a_nats_server_that_stays_away_are_lost_on_both_sides(
    server: NatsServer, node_nats: Nats, client_nats: Nats
) -> None:
    echo = Echo()
    async with linked(node_nats, client_nats, echo, timers=HASTY) as transport:
        await echoes(transport, b"before")
        await server.kill()
        with pytest.raises(TransportClosed) as caught:
            await transport.receive()
        assert caught.value.code == "lost"
        with pytest.raises(TransportClosed):
            await transport.send(b"after")
        await echo.ended.wait()
    assert echo.endings == ["lost"]


async def test_a_node_that_dies_is_noticed_before_the_silence_limit(
    server: NatsServer, client_nats: Nats
) -> None:
    """NATS tells that nobody listens; a client need not wait until silence is too long."""
    patient = replace(TIMERS, silence_s=60.0, absence_s=0.2)
    async with (
        connect_nats(options(server)) as node_nats,
        relay_listener(node_nats, "node-1", Held(), timers=patient) as listener,
    ):
        transport = await RelayDialer(client_nats, timers=patient).connect("node-1", timeout_s=5)
        assert listener.links == 1
        await node_nats.client.close()  # as its end would: nothing is said to anybody
        with anyio.fail_after(5), pytest.raises(TransportClosed) as caught:
            await transport.receive()
        assert caught.value.code == "lost"
        await transport.aclose()


@pytest.fixture
async def proxy(server: NatsServer) -> AsyncIterator[Proxy]:
    async with proxy_to(server.host, server.port) as proxy:
        yield proxy


@pytest.fixture
async def far_nats(proxy: Proxy) -> AsyncIterator[Nats]:
    """A client's connection through a bad network."""
    url = f"nats://{proxy.host}:{proxy.port}"
    async with connect_nats(
        NatsOptions(servers=(url,), backoff_s=(0.01, 0.1), ping_interval_s=0.2, close_timeout_s=0.2)
    ) as nats:
        yield nats


async def test_a_partition_that_heals_in_time_loses_nothing(
    proxy: Proxy, node_nats: Nats, far_nats: Nats
) -> None:
    frame = os.urandom(4 * MIB)
    async with linked(node_nats, far_nats, Echo()) as transport:
        proxy.cut()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(transport.send, frame)
            await first_steps()
            proxy.heal()
        assert await transport.receive() == frame


async def test_a_partition_that_stays_is_lost_on_both_sides(
    proxy: Proxy, node_nats: Nats, far_nats: Nats
) -> None:
    echo = Echo()
    async with linked(node_nats, far_nats, echo, timers=HASTY) as transport:
        await echoes(transport, b"before")
        proxy.cut()
        with pytest.raises(TransportClosed) as caught:
            await transport.receive()
        assert caught.value.code == "lost"
        await echo.ended.wait()
        assert echo.endings == ["lost"]
        proxy.heal()


@pytest.mark.parametrize("way", ["up", "down"])
async def test_half_a_partition_is_noticed_by_both_sides(
    proxy: Proxy, node_nats: Nats, far_nats: Nats, way: str
) -> None:
    echo = Echo()
    async with linked(node_nats, far_nats, echo, timers=HASTY) as transport:
        getattr(proxy, way).cut()
        with pytest.raises(TransportClosed) as caught:
            await transport.receive()
        assert caught.value.code == "lost"
        await echo.ended.wait()
        assert echo.endings == ["lost"]
        proxy.heal()


async def test_a_connection_that_is_reset_comes_back_with_its_links(
    proxy: Proxy, node_nats: Nats, far_nats: Nats
) -> None:
    frame = os.urandom(2 * MIB)
    async with linked(node_nats, far_nats, Echo()) as transport:
        for _ in range(3):
            proxy.reset()
            await echoes(transport, frame)


async def test_a_connection_that_is_stranded_is_replaced_in_time(
    proxy: Proxy, node_nats: Nats, far_nats: Nats
) -> None:
    async with linked(node_nats, far_nats, Echo()) as transport:
        proxy.strand()
        await echoes(transport, os.urandom(2 * MIB))
        assert far_nats.connections == 2


async def test_a_long_way_is_no_loss(proxy: Proxy, node_nats: Nats, far_nats: Nats) -> None:
    """The round trip is longer than the least time before something is sent again."""
    proxy.up.delay_s = proxy.down.delay_s = 0.05
    async with linked(node_nats, far_nats, Echo()) as transport:
        await echoes(transport, os.urandom(3 * MIB))


async def test_a_slow_reader_stops_the_sender_and_fills_nothing(
    server: NatsServer, node_nats: Nats, client_nats: Nats
) -> None:
    held = Held()
    limits = LinkLimits(window_bytes=512 * 1024)
    async with linked(node_nats, client_nats, held, limits=limits) as transport:
        sent = 0
        with anyio.move_on_after(0.5):
            while True:
                await transport.send(bytes(128 * 1024))
                sent += 1
        assert sent * 128 * 1024 <= 2 * limits.window_bytes
        assert client_nats.client.pending_data_size < limits.window_bytes
        held.go_on.set()
        await echoes(transport, b"at last")
    assert not any("Slow Consumer" in line for line in server.lines)


async def test_many_busy_links_are_no_burden_to_the_server(
    server: NatsServer, node_nats: Nats, client_nats: Nats
) -> None:
    """Each could have 2 MiB under way; together they have less than NATS lets a connection be behind."""
    frame = os.urandom(MIB)
    async with relay_listener(node_nats, "node-1", Echo()):
        dialer = RelayDialer(client_nats)
        transports = [await dialer.connect("node-1", timeout_s=5) for _ in range(40)]
        async with anyio.create_task_group() as tasks:
            for transport in transports:
                tasks.start_soon(echoes, transport, frame)
        for transport in transports:
            await transport.aclose()
    assert not any("Slow Consumer" in line for line in server.lines)


async def test_messages_that_come_twice_and_in_another_order_change_nothing(
    node_nats: Nats, client_nats: Nats
) -> None:
    """Copies of everything that was said on the link, newest first."""
    async with linked(node_nats, client_nats, Echo()) as transport:
        said: list[Msg] = []

        async def keep(message: Msg) -> None:
            said.append(message)

        spy = await client_nats.client.subscribe("gguf-worker.v1.relay.node-1.*.*", cb=keep)
        for number in range(20):
            await echoes(transport, os.urandom(1000 * number))
            for message in reversed(said):
                await client_nats.client.publish(message.subject, message.data)
            del said[:]
        await spy.unsubscribe()


async def test_a_server_that_takes_smaller_messages_after_its_restart(
    server: NatsServer, node_nats: Nats, client_nats: Nats
) -> None:
    frame = os.urandom(2 * MIB)
    async with linked(node_nats, client_nats, Echo()) as transport:
        async with anyio.create_task_group() as tasks:
            server.pause()
            tasks.start_soon(transport.send, frame)
            await first_steps()
            await server.kill()
            server.max_payload = 20_000
            await client_nats.wait_disconnected()
            await server.start()
        assert await transport.receive() == frame
        assert client_nats.max_payload == node_nats.max_payload == 20_000


async def test_garbage_from_a_third_party_disturbs_nobody(node_nats: Nats, client_nats: Nats) -> None:
    async with linked(node_nats, client_nats, Echo()) as transport:
        for subject in (transport._sends_to, transport._receives_from, up_subject("node-1", "f" * 32)):
            for data in (b"", b"x", os.urandom(500), HEADER.pack(1, 4, 0, 0, 12345, 0, 0, 0)):
                await client_nats.client.publish(subject, data)
        await echoes(transport, b"still here")
