"""Frames through a real NATS server, and links that are refused or end."""

from __future__ import annotations

import json
import os

import anyio
import pytest
from nats.aio.msg import Msg

from gguf_worker.errors import GgufWorkerError
from gguf_worker.node.nats import Nats
from gguf_worker.node.relay.chunk import Chunk, Kind, decode, encode
from gguf_worker.node.relay.dialer import RelayDialer
from gguf_worker.node.relay.link import LinkLimits, LinkTimers
from gguf_worker.node.relay.listener import RelayNameError, relay_listener
from gguf_worker.node.relay.subjects import connect_subject, down_subject, up_subject
from gguf_worker.node.transport import Transport, TransportClosed
from gguf_worker.testing.nats import NatsServer
from node.relay.services import Echo, Held

pytestmark = pytest.mark.anyio

CONNECT_S = 5.0
MIB = 1024 * 1024


async def refused(dialer: RelayDialer, name: str = "node-1") -> TransportClosed:
    with pytest.raises(TransportClosed) as caught:
        await dialer.connect(name, timeout_s=CONNECT_S)
    return caught.value


@pytest.mark.parametrize("size", [0, 1, 16 * 1024, MIB, 9 * MIB + 17])
async def test_a_frame_comes_back_as_it_was(node_nats: Nats, client_nats: Nats, size: int) -> None:
    echo = Echo()
    async with relay_listener(node_nats, "node-1", echo) as listener:
        transport = await RelayDialer(client_nats).connect("node-1", timeout_s=CONNECT_S)
        frame = os.urandom(size)
        await transport.send(frame)
        assert await transport.receive() == frame
        assert listener.links == 1
        await transport.aclose()
        await echo.ended.wait()
    assert echo.endings == ["closed"]


async def test_links_of_one_node_are_apart(node_nats: Nats, client_nats: Nats) -> None:
    async with relay_listener(node_nats, "node-1", Echo()):
        dialer = RelayDialer(client_nats)
        transports = [await dialer.connect("node-1", timeout_s=CONNECT_S) for _ in range(8)]

        async def talk(transport: Transport, number: int) -> None:
            for turn in range(20):
                frame = bytes((number, turn)) * (1 + 5000 * turn)
                await transport.send(memoryview(frame))
                assert await transport.receive() == frame

        async with anyio.create_task_group() as tasks:
            for number, transport in enumerate(transports):
                tasks.start_soon(talk, transport, number)
        for transport in transports:
            await transport.aclose()


# ---- refusals ------------------------------------------------------------------------------------


async def test_a_node_that_nobody_knows_is_refused_at_once(client_nats: Nats) -> None:
    with anyio.fail_after(1):
        error = await refused(RelayDialer(client_nats))
    assert error.code == "unreachable"
    assert "node-1" in error.message


@pytest.mark.parametrize("name", ["", "a.b", "*", "x y", "-a", "a" * 64])
async def test_what_is_no_name_is_refused(node_nats: Nats, client_nats: Nats, name: str) -> None:
    assert (await refused(RelayDialer(client_nats), name)).code == "unreachable"
    with pytest.raises(RelayNameError) as caught:
        async with relay_listener(node_nats, name, Echo()):
            pass
    assert caught.value.code == "name"


async def test_a_node_that_does_not_answer_is_unreachable_when_the_time_is_over(
    node_nats: Nats, client_nats: Nats
) -> None:
    async def ignore(_: Msg) -> None:
        pass

    subscription = await node_nats.client.subscribe(connect_subject("node-1"), cb=ignore)
    await node_nats.flush(1)
    with pytest.raises(TransportClosed) as caught:
        await RelayDialer(client_nats).connect("node-1", timeout_s=0.05)
    assert (caught.value.code, caught.value.retryable) == ("unreachable", True)
    await subscription.unsubscribe()


async def test_a_relay_that_is_not_there_is_no_fault_of_the_node(
    server: NatsServer, client_nats: Nats
) -> None:
    await server.kill()
    await client_nats.wait_disconnected()
    with pytest.raises(TransportClosed, match="there is no connection to the relay nats://") as caught:
        await RelayDialer(client_nats).connect("node-1", timeout_s=0.05)
    assert (caught.value.code, caught.value.retryable) == ("unreachable", True)


async def test_a_wrong_token_is_refused_and_a_right_one_has_an_account(
    node_nats: Nats, client_nats: Nats
) -> None:
    echo = Echo()
    tokens = {"right": "somebody"}
    async with relay_listener(node_nats, "node-1", echo, authenticate=tokens.get):
        for token in ("", "wrong"):
            assert (await refused(RelayDialer(client_nats, token=token))).code == "unauthenticated"
        transport = await RelayDialer(client_nats, token="right").connect("node-1", timeout_s=CONNECT_S)
        await transport.aclose()
    assert echo.accounts == ["somebody"]


async def test_more_links_than_allowed_are_refused_until_one_ends(node_nats: Nats, client_nats: Nats) -> None:
    echo = Echo()
    async with relay_listener(node_nats, "node-1", echo, max_links=1):
        dialer = RelayDialer(client_nats)
        first = await dialer.connect("node-1", timeout_s=CONNECT_S)
        error = await refused(dialer)
        assert (error.code, error.retryable, error.fields["reason"]) == ("unreachable", True, "capacity")
        await first.aclose()
        await echo.ended.wait()
        await (await dialer.connect("node-1", timeout_s=CONNECT_S)).aclose()


@pytest.mark.parametrize("connection", ["0" * 32, "of another kind"])
async def test_another_version_is_refused_with_both_numbers(
    node_nats: Nats, client_nats: Nats, connection: str
) -> None:
    async with relay_listener(node_nats, "node-1", Echo()):
        question = json.dumps({"version": 2, "connection": connection, "something": "new"}).encode()
        answer = await client_nats.client.request(connect_subject("node-1"), question, timeout=1)
    refusal = json.loads(answer.data)["refusal"]
    assert refusal["code"] == "version"
    assert refusal["fields"] == {"expected": "1", "actual": "2"}


@pytest.mark.parametrize(
    "garbage", [b"", b"\xff\x00", b"[]", b"[" * 8000, b'{"connection": "a.b"}', b"{" * 9000]
)
async def test_a_question_that_is_none_is_answered_so(
    node_nats: Nats, client_nats: Nats, garbage: bytes
) -> None:
    async with relay_listener(node_nats, "node-1", Echo()) as listener:
        answer = await client_nats.client.request(connect_subject("node-1"), garbage, timeout=1)
        assert json.loads(answer.data)["refusal"]["code"] in ("unreachable", "version")
        assert listener.links == 0


async def test_the_second_node_of_a_name_is_told_so(node_nats: Nats, client_nats: Nats) -> None:
    async with relay_listener(node_nats, "node-1", Echo(), instance="first"):
        with pytest.raises(RelayNameError) as caught:
            async with relay_listener(client_nats, "node-1", Echo()):
                pass
        assert (caught.value.code, caught.value.fields["instance"]) == ("name_taken", "first")
    async with relay_listener(client_nats, "node-1", Echo()):
        pass


# ---- ends ----------------------------------------------------------------------------------------


async def test_everything_that_was_sent_comes_before_the_end_and_its_reason(
    node_nats: Nats, client_nats: Nats
) -> None:
    class Farewell:
        async def serve(self, transport: Transport, *, account: str = "") -> None:  # noqa: ARG002
            await transport.send(b"first")
            await transport.send(bytes(MIB))
            await transport.aclose(GgufWorkerError("no more", code="draining", fields={"node": "node-1"}))

    async with relay_listener(node_nats, "node-1", Farewell()):
        transport = await RelayDialer(client_nats).connect("node-1", timeout_s=CONNECT_S)
        assert await transport.receive() == b"first"
        assert len(await transport.receive()) == MIB
        for _ in range(2):
            with pytest.raises(TransportClosed) as caught:
                await transport.receive()
            assert (caught.value.code, caught.value.message) == ("closed", "no more")
            assert caught.value.fields == {"node": "node-1", "reason": "draining"}
        with pytest.raises(TransportClosed):
            await transport.send(b"too late")
        await transport.aclose()
        await transport.aclose()


async def test_a_frame_that_is_too_large_is_refused_and_the_link_goes_on(
    node_nats: Nats, client_nats: Nats
) -> None:
    async with relay_listener(node_nats, "node-1", Echo(), limits=LinkLimits(max_frame_bytes=1000)):
        transport = await RelayDialer(client_nats).connect("node-1", timeout_s=CONNECT_S)
        assert transport.max_frame_bytes == 1000
        with pytest.raises(TransportClosed) as caught:
            await transport.send(bytes(1001))
        assert caught.value.code == "too_large"
        await transport.send(bytes(1000))
        assert await transport.receive() == bytes(1000)
        await transport.aclose()


async def test_a_client_that_waits_is_told_when_its_node_leaves(node_nats: Nats, client_nats: Nats) -> None:
    dialer = RelayDialer(client_nats)
    async with relay_listener(node_nats, "node-1", Held()):
        transport = await dialer.connect("node-1", timeout_s=CONNECT_S)
    with pytest.raises(TransportClosed) as caught:
        await transport.receive()
    assert caught.value.code == "closed"
    await transport.aclose()


async def test_a_link_of_a_node_that_was_started_anew_is_lost_at_once(
    node_nats: Nats, client_nats: Nats
) -> None:
    async with relay_listener(node_nats, "node-1", Echo()):
        subject = down_subject("node-1", "0" * 32)
        subscription = await client_nats.client.subscribe(subject)
        data = encode(Chunk(kind=Kind.DATA, epoch=99, payload=b"of an old link"))
        await client_nats.client.publish(up_subject("node-1", "0" * 32), data)
        message = await subscription.next_msg(timeout=1)
        assert decode(message.data) == Chunk(kind=Kind.RESET, epoch=99, payload=b"")
        await subscription.unsubscribe()


async def test_closing_ends_whoever_waits(node_nats: Nats, client_nats: Nats) -> None:
    async with relay_listener(node_nats, "node-1", Held()):
        transport = await RelayDialer(client_nats).connect("node-1", timeout_s=CONNECT_S)
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                with pytest.raises(TransportClosed):
                    await transport.receive()

            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            await transport.aclose()


# ---- cancellation --------------------------------------------------------------------------------


async def test_a_cancelled_receive_loses_nothing(node_nats: Nats, client_nats: Nats) -> None:
    async with relay_listener(node_nats, "node-1", Echo()):
        transport = await RelayDialer(client_nats).connect("node-1", timeout_s=CONNECT_S)
        for number in range(50):
            frame = str(number).encode()
            await transport.send(frame)
            with anyio.move_on_after(0):
                assert await transport.receive() == frame
                continue
            assert await transport.receive() == frame
        await transport.aclose()


async def test_a_cancelled_send_is_sent_all_the_same(node_nats: Nats, client_nats: Nats) -> None:
    held = Held()
    async with relay_listener(node_nats, "node-1", held):
        transport = await RelayDialer(client_nats).connect("node-1", timeout_s=CONNECT_S)
        with anyio.move_on_after(0.05) as scope:
            while True:  # until the window is full: nobody reads
                await transport.send(bytes(MIB))
        assert scope.cancelled_caught
        held.go_on.set()
        await transport.send(b"after it")
        assert await transport.receive() == b"after it"
        await transport.aclose()


async def test_a_link_goes_on_by_itself_after_a_send_that_was_cancelled_while_it_published(
    node_nats: Nats, client_nats: Nats, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers = LinkTimers(retransmit_s=0.05, heartbeat_s=60, silence_s=120)

    async def stuck(*_: object, **__: object) -> None:
        publishing.set()
        await anyio.sleep_forever()

    publishing = anyio.Event()
    async with relay_listener(node_nats, "node-1", Echo(), timers=timers):
        transport = await RelayDialer(client_nats, timers=timers).connect("node-1", timeout_s=CONNECT_S)
        with monkeypatch.context() as patch:
            patch.setattr(client_nats.client, "publish", stuck)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(transport.send, b"frame")
                await publishing.wait()
                tasks.cancel_scope.cancel()
        with anyio.fail_after(5):
            assert await transport.receive() == b"frame"
        await transport.aclose()


@pytest.mark.parametrize("epoch", ["-1", "1" + "0" * 16, "none"])
async def test_an_answer_that_is_none_is_no_link(node_nats: Nats, client_nats: Nats, epoch: str) -> None:
    async def answer(message: Msg) -> None:
        await message.respond(json.dumps({"version": 1, "epoch": epoch}).encode())

    subscription = await node_nats.client.subscribe(connect_subject("node-1"), cb=answer)
    await node_nats.flush(1)
    assert (await refused(RelayDialer(client_nats))).code == "unreachable"
    await subscription.unsubscribe()


async def test_connecting_can_be_cancelled(node_nats: Nats, client_nats: Nats) -> None:
    async def ignore(_: Msg) -> None:
        asked.set()

    asked = anyio.Event()
    subscription = await node_nats.client.subscribe(connect_subject("node-1"), cb=ignore)
    await node_nats.flush(1)
    async with anyio.create_task_group() as tasks:

        async def connect() -> None:
            await RelayDialer(client_nats).connect("node-1", timeout_s=60)

        tasks.start_soon(connect)
        await asked.wait()
        tasks.cancel_scope.cancel()
    await subscription.unsubscribe()


async def test_a_node_that_leaves_in_the_middle_leaves_nothing(node_nats: Nats, client_nats: Nats) -> None:
    held = Held()
    async with relay_listener(node_nats, "node-1", held):
        dialer = RelayDialer(client_nats)
        transports = [await dialer.connect("node-1", timeout_s=CONNECT_S) for _ in range(4)]
    for transport in transports:
        with pytest.raises(TransportClosed):
            await transport.receive()
        await transport.aclose()
