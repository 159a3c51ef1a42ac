"""Streams over gRPC: every frame once and in order, ends that say why, one's trouble never another's."""

from __future__ import annotations

from typing import Any

import anyio
import grpc
import grpc.aio
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from gguf_worker.node.grpc import GrpcClientOptions, GrpcDialer, GrpcLimits, GrpcOptions
from gguf_worker.node.grpc.doorkeeper import Doorkeeper
from gguf_worker.node.grpc.health import NodeHealth
from gguf_worker.node.grpc.streams import Streams
from gguf_worker.node.transport import Transport, TransportClosed
from node.grpc.rigs import TIMEOUT_S, EchoService, Node, StateBackend, echoed, ended, node

pytestmark = pytest.mark.anyio

SMALL = GrpcLimits(max_frame_bytes=64 * 1024)


@pytest.mark.parametrize("size", [0, 1, 16 * 1024, 8 * 1024 * 1024], ids=str)
async def test_a_frame_comes_back_as_it_was(size: int) -> None:
    async with node() as running:
        assert await echoed(await running.connect(), bytes(range(256)) * (size // 256) or bytes(size))


async def test_a_view_of_rows_is_sent_as_it_is() -> None:
    async with node() as running:
        stream = await running.connect()
        await stream.send(memoryview(b"abcdef")[2:4])
        assert await stream.receive() == b"cd"


async def test_frames_keep_their_order() -> None:
    async with node() as running:
        stream = await running.connect()
        frames = [str(number).encode() for number in range(200)]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send_all, stream, frames)
            assert [await stream.receive() for _ in frames] == frames


async def send_all(stream: Transport, frames: list[bytes]) -> None:
    for frame in frames:
        await stream.send(frame)


async def test_streams_to_one_node_share_a_connection() -> None:
    async with node() as running:
        for stream in [await running.connect() for _ in range(5)]:
            assert await echoed(stream)
        assert len(running.dialer._lines) == 1


async def test_a_cancelled_receive_loses_no_frame_and_ends_nothing() -> None:
    """A caller that gives up waiting has not heard the answer; the next one does."""
    async with node() as running:
        stream = await running.connect()
        for number in range(4):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(stream.receive)
                    await anyio.wait_all_tasks_blocked()
                    scope.cancel()
            await stream.send(str(number).encode())
            assert await stream.receive() == str(number).encode()


async def test_a_cancelled_send_ends_its_stream_only() -> None:
    async with node() as running:
        stream, other = await running.connect(), await running.connect()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await stream.send(b"one")
        assert (await ended(stream)).code == "closed"
        assert await echoed(other)


async def test_an_error_follows_the_last_frame_with_its_status_and_its_fields() -> None:
    async with node() as running:
        stream = await running.connect()
        await stream.send(b"error identity")
        assert await stream.receive() == b"the last frame"
        error = await ended(stream)
        assert error.code == "lost"
        assert error.fields["peer_code"] == "identity"
        assert error.fields["why"] == "a test"
        assert "asked for identity" in error.message
        assert (await ended(stream)).code == "lost"  # and again, for whoever asks again


async def test_a_stream_of_another_version_ends_as_that() -> None:
    async with node() as running:
        stream = await running.connect()
        await stream.send(b"error version")
        assert (await ended(stream)).code == "version"


async def test_a_defect_of_the_service_ends_its_stream_only(caplog: pytest.LogCaptureFixture) -> None:
    async with node() as running:
        broken, other = await running.connect(), await running.connect()
        await broken.send(b"defect")
        error = await ended(broken)
        assert error.fields["peer_code"] == "internal"
        assert "ZeroDivisionError" in error.message
        assert await echoed(other)
        assert "a stream ended with a defect" in caplog.text
        caplog.clear()  # its traceback holds the stream


async def test_too_large_a_frame_is_refused_before_it_is_sent() -> None:
    async with node(client=GrpcClientOptions(limits=SMALL)) as running:
        stream = await running.connect()
        with pytest.raises(TransportClosed, match="65537 bytes, of at most 65536") as caught:
            await stream.send(bytes(64 * 1024 + 1))
        assert caught.value.code == "too_large"
        assert await echoed(stream, bytes(64 * 1024))


async def test_too_large_a_frame_for_the_node_ends_that_stream_only() -> None:
    async with node(options=GrpcOptions(limits=SMALL, grace_s=0.0)) as running:
        greedy, other = await running.connect(), await running.connect()
        await greedy.send(bytes(1024 * 1024))
        error = await ended(greedy)
        assert error.code == "too_large"
        assert "send fewer rows at once" in error.message
        assert await echoed(other, bytes(64 * 1024))


async def test_too_large_a_frame_of_the_node_ends_that_stream_only() -> None:
    limits = GrpcLimits(max_frame_bytes=64 * 1024)
    async with node(BigAnswers(), client=GrpcClientOptions(limits=limits)) as running:
        stream = await running.connect()
        await stream.send(b"x")
        assert (await ended(stream)).code == "too_large"
        assert await echoed_small(running)


class BigAnswers(EchoService):
    """Answers with more than a client wants."""

    async def answer(self, transport: Transport, frame: bytes) -> None:
        await transport.send(frame if frame == b"small" else bytes(1024 * 1024))


async def echoed_small(running: Node) -> bool:
    return await echoed(await running.connect(), b"small")


async def test_a_client_that_closes_ends_the_service() -> None:
    async with node() as running:
        stream = await running.connect()
        assert await echoed(stream)
        await stream.aclose()
        with anyio.fail_after(TIMEOUT_S):
            await running.service.ended.wait()
        assert running.service.ends == ["closed"]
        with pytest.raises(TransportClosed, match="closed on this side"):
            await stream.receive()
        with pytest.raises(TransportClosed, match="closed on this side"):
            await stream.send(b"x")


async def test_closing_wakes_whoever_waits() -> None:
    async with node() as running:
        stream = await running.connect()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ended, stream)
            await anyio.wait_all_tasks_blocked()
            await stream.aclose()


async def test_a_half_closed_stream_ends_well() -> None:
    """A client of another make may end its side and wait for the status."""
    async with node() as running, grpc.aio.insecure_channel(running.address) as channel:
        call: Any = channel.stream_stream("/gguf_worker.v1.Node/Stage")()
        await call.write(b"hello")
        assert await call.read() == b"hello"
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
        assert running.service.ends == ["closed"]


async def test_a_node_that_stops_says_so_to_the_streams_that_are_open() -> None:
    """First it takes no more of them, and then it ends those that did not end by themselves."""
    async with GrpcDialer() as dialer:
        async with node() as running:
            stream = await dialer.connect(running.address, timeout_s=TIMEOUT_S)
            await running.server.drain()
            with pytest.raises(TransportClosed, match="use another one") as caught:
                await dialer.connect(running.address, timeout_s=TIMEOUT_S)
            assert (caught.value.code, caught.value.retryable) == ("unreachable", True)
            assert await echoed(stream)
            assert running.server.open_streams == 1
        error = await ended(stream)
        assert (error.code, error.retryable) == ("lost", True)
        assert error.fields["peer_code"] == "draining"
        assert running.server.open_streams == 0


async def test_a_stream_may_end_by_itself_while_the_node_stops() -> None:
    async with GrpcDialer() as dialer, anyio.create_task_group() as tasks:
        async with node(options=GrpcOptions(grace_s=TIMEOUT_S)) as running:
            stream = await dialer.connect(running.address, timeout_s=TIMEOUT_S)
            tasks.start_soon(stop_after_echo, stream)
        assert running.service.ends == ["closed"]


async def stop_after_echo(stream: Transport) -> None:
    assert await echoed(stream)
    await stream.aclose()


async def test_more_streams_than_the_node_takes_are_refused() -> None:
    options = GrpcOptions(limits=GrpcLimits(max_streams=2), grace_s=0.0)
    async with node(options=options) as running:
        first, second = await running.connect(), await running.connect()
        refused = await anyio.to_thread.run_sync(code_of_a_third, running.address)
        assert refused is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await echoed(first)
        assert await echoed(second)
        await first.aclose()
        with anyio.fail_after(TIMEOUT_S):
            await running.service.ended.wait()
            while running.server.open_streams == 2:  # noqa: ASYNC110 - gRPC tells nobody
                await anyio.sleep(0.001)
        assert await echoed(await running.connect())


class SlowContext:
    """A call whose client takes nothing until it is let."""

    def __init__(self) -> None:
        self.takes = anyio.Event()
        self.refusal: grpc.StatusCode | None = None

    def peer(self) -> str:
        return "slow"

    def invocation_metadata(self) -> tuple[()]:
        return ()

    async def send_initial_metadata(self, _: object) -> None:
        await self.takes.wait()

    async def read(self) -> object:
        await self.takes.wait()
        return grpc.aio.EOF

    async def abort(self, code: grpc.StatusCode, *_: object) -> None:
        self.refusal = code
        raise grpc.aio.AbortError


async def test_streams_that_come_at_once_are_counted_at_once() -> None:
    """Also those whose client was not told yet that it has one."""
    streams = Streams(EchoService(), Doorkeeper(None), GrpcLimits(max_streams=1))
    handle: Any = streams.handle
    first, second = SlowContext(), SlowContext()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(handle, None, first)
        await anyio.wait_all_tasks_blocked()
        assert streams.count == 1
        with pytest.raises(grpc.aio.AbortError):
            await handle(None, second)
        first.takes.set()
    assert (first.refusal, second.refusal) == (None, grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert streams.count == 0


class Watcher:
    """A call of Watch."""

    def __init__(self, *, reads: bool) -> None:
        self.reads = reads
        self.told: list[int] = []
        self.heard = anyio.Event()

    async def write(self, answer: HealthCheckResponse) -> None:
        self.told.append(answer.status)
        self.heard.set()
        if not self.reads:
            await anyio.sleep_forever()


async def test_watcher_that_does_not_read_holds_up_nobody() -> None:
    """Neither those that do, nor the node that drains."""
    health = NodeHealth([StateBackend()])  # type: ignore[list-item]
    watch: Any = health.Watch
    slow, good = Watcher(reads=False), Watcher(reads=True)
    with anyio.fail_after(TIMEOUT_S):
        async with anyio.create_task_group() as tasks:
            for watcher in (slow, good):
                tasks.start_soon(watch, HealthCheckRequest(), watcher)
            await good.heard.wait()
            good.heard = anyio.Event()
            health.drain()
            await good.heard.wait()
            tasks.cancel_scope.cancel()
    assert good.told == [HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING]
    assert slow.told == [HealthCheckResponse.SERVING]


def code_of_a_third(address: str) -> grpc.StatusCode:
    """Of a stream on a connection of its own: on one connection gRPC itself makes it wait."""
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        call: Any = channel.stream_stream("/gguf_worker.v1.Node/Stage")(iter(()))
        code: grpc.StatusCode = call.code()
        return code
