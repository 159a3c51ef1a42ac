"""HTTP under clients that are broken, slow or many, and its end in good order."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.abc import SocketStream
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from gguf_worker.logs import bound_ids
from gguf_worker.serving import server
from gguf_worker.serving.address import Address, AddressError, bound_address, is_loopback, listen
from gguf_worker.serving.app import status_app
from gguf_worker.serving.request import WithRequestId
from gguf_worker.serving.server import http_server
from gguf_worker.serving.service import Service

pytestmark = pytest.mark.anyio

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s\r\n"


@asynccontextmanager
async def pages(app: Starlette | None = None) -> AsyncIterator[Address]:
    """Serves an application, by default the status of a service that has not begun."""
    sockets = listen(Address("127.0.0.1", 0))
    address = bound_address(sockets[0])
    async with http_server(app or status_app(Service("fake")), sockets):
        yield address


async def connect(address: Address) -> SocketStream:
    return await anyio.connect_tcp(address.host, address.port)


async def read_all(client: SocketStream) -> bytes:
    """What comes until the server closes."""
    answer = b""
    with anyio.fail_after(20):
        try:
            async for chunk in client:
                answer += chunk
        except anyio.BrokenResourceError:
            """It was cut off, which is an end too."""
    return answer


async def get(address: Address, headers: bytes = b"") -> bytes:
    async with await connect(address) as client:
        await client.send(GET % headers)
        return await read_all(client)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\xff\x16\x03\x01" * 100 + b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n",
        b"GET / HTTP/1.1\r\nX-Long: " + b"a" * (server.MAX_HEAD_BYTES + 1),
        b"GET /" + b"a" * (server.MAX_HEAD_BYTES + 1),
    ],
)
async def test_garbage_is_refused_and_disturbs_nobody(garbage: bytes) -> None:
    """One answer with a status of the 400s, the connection closed, and others are served as before."""
    async with pages() as address, await connect(address) as broken, await connect(address) as other:
        await broken.send(garbage)
        answer = await read_all(broken)
        await other.send(GET % b"")
        assert (await read_all(other)).startswith(b"HTTP/1.1 200 ")
    assert answer.startswith(b"HTTP/1.1 4")


async def test_client_that_does_not_finish_its_request_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it sends nothing, or half of a request, or half of a second one; one that is idle between two
    requests is not meant."""
    monkeypatch.setattr(server, "HEAD_TIMEOUT_S", 0.2)
    async with pages() as address:
        kept, silent, slow = [await connect(address) for _ in range(3)]  # so its deadline would be the first
        await slow.send(b"GET /healthz HTTP/1.1\r\nHost:")
        await kept.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await kept.receive()).startswith(b"HTTP/1.1 200 ")
        assert (await get(address)).startswith(b"HTTP/1.1 200 ")
        assert await read_all(silent) == b""
        assert await read_all(slow) == b""
        await kept.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await kept.receive()).startswith(b"HTTP/1.1 200 ")
        await kept.send(b"GET /healthz HTTP/1.1\r\n")
        assert await read_all(kept) == b""
        for client in (silent, slow, kept):
            await client.aclose()


async def test_slow_clients_hold_up_nobody() -> None:
    """A hundred that sent half a request, and one that did not."""
    async with pages() as address:
        slow = [await connect(address) for _ in range(100)]
        for client in slow:
            await client.send(b"GET /healthz HTTP/1.1\r\n")
        assert (await get(address)).startswith(b"HTTP/1.1 200 ")
        for client in slow:
            await client.aclose()


async def test_model_whose_name_is_no_text_is_shown_all_the_same() -> None:
    """File names are bytes."""
    async with pages(status_app(Service("a\udcff\n"))) as address:
        async with await connect(address) as client:
            await client.send(b"GET /v1/status HTTP/1.0\r\n\r\n")
            _, _, page = (await read_all(client)).partition(b"\r\n\r\n")
        assert json.loads(page)["model"] == "a\udcff\n"
        async with await connect(address) as client:
            await client.send(b"GET /readyz HTTP/1.0\r\n\r\n")
            assert (await read_all(client)).endswith(b"\r\n\r\nstarting: a\\udcff\\n\n")


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_request_that_is_under_way_finishes_when_the_server_ends(is_cancelled: bool) -> None:
    """It gets its whole answer, also where the server's owner is cancelled; a new connection gets none."""
    entered, leaving = anyio.Event(), anyio.Event()

    async def slow(_: Request) -> PlainTextResponse:
        entered.set()
        await leaving.wait()
        return PlainTextResponse("done")

    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            async with pages(Starlette(routes=[Route("/healthz", slow)])) as address:
                client = await connect(address)
                await client.send(GET % b"")
                with anyio.fail_after(20):
                    await entered.wait()
                tasks.start_soon(_release_when_closed, address, leaving)
                if is_cancelled:
                    scope.cancel()
                    await anyio.lowlevel.checkpoint()
        async with client:
            assert (await read_all(client)).endswith(b"done")


async def _release_when_closed(address: Address, leaving: anyio.Event) -> None:
    """Lets the request finish once nobody can connect any more."""
    with anyio.fail_after(20):
        while True:
            try:
                async with await connect(address):
                    await anyio.sleep(0.01)
            except OSError:
                break
    leaving.set()


async def test_request_has_the_id_that_its_client_gave_it(caplog: pytest.LogCaptureFixture) -> None:
    """In its answer and in whatever is logged on the way; one that could do harm is replaced."""
    caplog.set_level(logging.DEBUG, "gguf_worker.serving.request")
    seen: list[object] = []

    async def page(_: Request) -> PlainTextResponse:
        seen.append(bound_ids()["request_id"])
        return PlainTextResponse("")

    app = Starlette(routes=[Route("/healthz", page)], middleware=[Middleware(WithRequestId)])
    async with pages(app) as address:
        answer = await get(address, b"X-Request-Id: mine-7\r\n")
        assert b"x-request-id: mine-7\r\n" in answer
        answer = await get(address, b"X-Request-Id: it's \x1b[31m\r\n")
        assert b"31m" not in answer
    assert seen[0] == "mine-7"
    assert isinstance(seen[1], str)
    assert len(seen[1]) == 32
    statuses = [vars(record)["fields"]["status"] for record in caplog.records]
    assert statuses == [200, 200]


# ---- where it listens ----


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("127.0.0.1:80", "127.0.0.1", 80), ("localhost:0", "localhost", 0), ("[::1]:65535", "::1", 65535)],
)
async def test_address_is_read_and_written(text: str, host: str, port: int) -> None:
    """Both ways the same."""
    assert Address.parse(text) == Address(host, port)
    assert str(Address.parse(text)) == text


async def test_address_of_another_machine_cannot_be_listened_on() -> None:
    """The error names it and leaves no socket open."""
    with pytest.raises(AddressError, match=r"192\.0\.2\.1:80: .*no such address"):
        listen(Address("192.0.2.1", 80))
    with pytest.raises(AddressError, match="host's name"):
        listen(Address("no.such.host.invalid", 80))


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("0.0.0.0", False), ("::", False)],
)
async def test_loopback_is_known(host: str, expected: bool) -> None:
    """Everything else can be reached by others."""
    assert is_loopback(Address(host, 80)) is expected


async def test_every_address_of_a_name_is_listened_on() -> None:
    """A client of either family finds `localhost`."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    sockets = listen(Address("localhost", port))
    try:
        families = {info[0] for info in socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM)}
        assert {listener.family for listener in sockets} == families
    finally:
        for listener in sockets:
            listener.close()


# ---- bodies that nobody wants ----


@asynccontextmanager
async def refusing() -> AsyncIterator[Address]:
    """Answers every request before its body."""

    async def refuse(_: Request) -> PlainTextResponse:
        return PlainTextResponse("no", status_code=429)

    async with pages(Starlette(routes=[Route("/", refuse, methods=["POST"])])) as address:
        yield address


def _head(n_bytes: int) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % n_bytes


async def _refused(client: SocketStream) -> None:
    answer = b""
    with anyio.fail_after(20):
        while not answer.endswith(b"\r\n\r\nno"):
            answer += await client.receive()
    assert answer.startswith(b"HTTP/1.1 429 ")


async def _send_for_ever(client: SocketStream) -> None:
    while True:
        await client.send(b"a" * 10_000)


async def test_body_that_comes_after_its_answer_is_thrown_away() -> None:
    """The connection is as good as before."""
    async with refusing() as address, await connect(address) as client:
        for _ in range(3):
            await client.send(_head(100_000))
            await _refused(client)
            for _ in range(10):
                await client.send(b"a" * 10_000)


async def test_body_that_comes_for_ever_after_its_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_UNWANTED_BYTES", 200_000)
    async with refusing() as address, await connect(address) as client:
        await client.send(_head(10**12))
        await _refused(client)
        with anyio.fail_after(20), pytest.raises(anyio.BrokenResourceError):
            await _send_for_ever(client)


@pytest.mark.parametrize("begun", [b"", b"a"])
async def test_body_that_never_comes_after_its_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(server, "UNWANTED_S", 0.2)
    async with refusing() as address, await connect(address) as client:
        await client.send(_head(100))
        await _refused(client)
        await client.send(begun)
        assert await read_all(client) == b""


async def test_connection_is_not_kept_for_ever_after_a_body_that_nobody_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is idle, as after any other request."""
    monkeypatch.setattr(server, "KEEP_ALIVE_S", 0.2)
    async with refusing() as address, await connect(address) as client:
        await client.send(_head(100))
        await _refused(client)
        await client.send(b"a" * 100)
        assert await read_all(client) == b""
