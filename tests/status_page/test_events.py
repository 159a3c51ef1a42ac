"""/v1/events with readers that come, are slow, leave, and have no key."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import anyio
import pytest
from starlette.applications import Starlette

from fakes import PROMPT, SETTINGS, spec
from gguf_worker.gateway.app import gateway_app
from gguf_worker.gateway.catalogue import OneModel
from gguf_worker.gateway.gateway import open_gateway
from gguf_worker.node.grpc.tokens import Tokens
from gguf_worker.serving import server
from gguf_worker.serving.address import Address, bound_address, listen
from gguf_worker.serving.server import http_server
from gguf_worker.serving.service import Service
from gguf_worker.serving.shown import ServiceShown
from gguf_worker.serving.signals import StopRequest
from gguf_worker.status_page import events
from gguf_worker.status_page.board import Board
from gguf_worker.status_page.pages import page_routes
from gguf_worker.status_page.subject import Subject
from watching import FOREVER_S, Told, events_at

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def watched(subject: Subject, *, period_s: float = FOREVER_S) -> AsyncIterator[tuple[Board, Address]]:
    """A board, and where it is served."""
    board = Board(subject, period_s=period_s)
    sockets = listen(Address("127.0.0.1", 0))
    async with http_server(Starlette(routes=page_routes(board)), sockets), board.running():
        yield board, bound_address(sockets[0])


async def none_watches(board: Board, told: Told) -> None:
    """Returns when nobody reads any more."""
    with anyio.fail_after(20):
        while board.watchers:
            await told.look_again()


async def somebody_watches(board: Board, told: Told) -> None:
    """Returns when somebody reads."""
    with anyio.fail_after(20):
        while not board.watchers:
            await told.look_again()


async def ask_and_read_nothing(address: Address) -> socket.socket:
    """A client with little room for what comes."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await anyio.to_thread.run_sync(client.connect, (address.host, address.port))
    client.sendall(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
    return client


async def test_snapshot_comes_first_and_then_changes() -> None:
    """In a stream that nothing between may keep."""
    told = Told(model="<img src=x onerror=alert(1)>\udcff\n")
    async with watched(told) as (_, address), events_at(address) as stream:
        assert stream.answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert stream.answer.headers["cache-control"] == "no-store"
        kind, event = await stream.next()
        assert (kind, event["status"]["model"]) == ("snapshot", told.status["model"])
        told.generations.add({"work_id": "w"})
        await told.look_again()
        kind, event = await stream.next()
        assert (kind, event["generations"]) == ("change", [{"work_id": "w"}])


async def test_killed_worker_is_told() -> None:
    """With its cause, and the restart; by a sampler that waits for no period to pass."""
    service, stop = Service("fake"), StopRequest()
    settings = replace(SETTINGS, restart=PROMPT)
    async with watched(ServiceShown(service)) as (_, address), anyio.create_task_group() as tasks:

        async def run() -> None:
            specs = [spec((0, 6)), spec((6, 12))]
            await service.run(specs, settings=settings, stop=stop, drain_timeout_s=10)

        tasks.start_soon(run)
        async with events_at(address) as stream:
            event = await stream.until("phase", "ready")
            os.kill(event["status"]["workers"][1]["pid"], signal.SIGKILL)
            while event["status"]["workers"][1]["restarts"] == 0:
                _, event = await stream.next()
        worker = event["status"]["workers"][1]
        assert [(end["cause"], end["signal"]) for end in worker["ends"]] == [("signal_other", "SIGKILL")]
        assert event["status"]["workers"][0]["ends"] == []
        stop.take(signal.SIGTERM)


async def test_slow_reader_gets_the_newest_state_and_no_queue() -> None:
    """What it misses is nowhere; of two events that are on the way, the later one waits for it to read."""
    told = Told(weight="x" * 8_000_000)
    async with watched(told) as (board, address):
        slow = await ask_and_read_nothing(address)
        await somebody_watches(board, told)
        for _ in range(5):
            await told.look_again()
        newest = told.looks

        def read_to_the_newest() -> list[int]:
            with slow, slow.makefile("rb") as lines:
                looks = []
                for line in lines:
                    if line.startswith(b"data: "):
                        looks.append(json.loads(line[6:])["status"]["look"])
                        if looks[-1] >= newest:
                            break
                return looks

        looks = await anyio.to_thread.run_sync(read_to_the_newest)
        assert looks[-1] == newest
        assert len(looks) <= 3
        await none_watches(board, told)


async def test_reader_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while, with all that it held."""
    monkeypatch.setattr(server, "STUCK_S", 0.2)
    told = Told(weight="x" * 8_000_000)
    async with watched(told) as (board, address):
        with await ask_and_read_nothing(address):
            await somebody_watches(board, told)
            await none_watches(board, told)


async def test_client_that_leaves_leaves_nothing() -> None:
    """Neither a task nor a place among those who may watch."""
    told = Told()
    async with watched(told) as (board, address):
        async with events_at(address) as stream, events_at(address) as other:
            await stream.next()
            await other.next()
            assert board.watchers == 2
        await none_watches(board, told)


async def test_too_many_readers_are_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a time after which another attempt may do."""
    monkeypatch.setattr(events, "MOST_WATCHERS", 1)
    told = Told()
    async with watched(told) as (board, address):
        async with events_at(address) as stream:
            await stream.next()
            async with events_at(address) as other:
                assert other.answer.status_code == 503
                assert "retry-after" in other.answer.headers
        await none_watches(board, told)


async def test_silent_stream_says_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a comment, which no reader takes for an event."""
    monkeypatch.setattr(events, "KEEP_ALIVE_S", 0.05)
    async with watched(Told()) as (_, address), events_at(address) as stream:
        lines = stream.answer.aiter_lines()
        with anyio.fail_after(20):
            while await anext(lines) != ": alive":
                pass


async def test_streams_end_with_the_service() -> None:
    """After the last state, and without holding up the server's end."""
    told = Told()
    board = Board(told, period_s=FOREVER_S)
    sockets = listen(Address("127.0.0.1", 0))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(http_server(Starlette(routes=page_routes(board)), sockets))
        async with board.running():
            stream = await stack.enter_async_context(events_at(bound_address(sockets[0])))
            await stream.next()
        _, event = await stream.next()
        assert event["status"]["look"] == told.looks
        with pytest.raises(StopAsyncIteration):
            await stream.next()


async def test_events_need_the_key_of_the_api() -> None:
    """Where there is one; the page itself is for everybody, because it asks for the key."""
    async with open_gateway(OneModel("fake"), keys=Tokens.of({"a-key-of-this-test": "me"})) as gateway:
        board = Board(Told(), period_s=FOREVER_S)
        sockets = listen(Address("127.0.0.1", 0))
        app = gateway_app(gateway, page_routes(board, gateway.account_of))
        async with http_server(app, sockets), board.running():
            address = bound_address(sockets[0])
            for headers in ({}, {"authorization": "Bearer another-key-than-that"}):
                async with events_at(address, **headers) as stream:
                    assert stream.answer.status_code == 401
                    assert json.loads(await stream.answer.aread())["error"]["code"] == "invalid_api_key"
            async with events_at(address, authorization="Bearer a-key-of-this-test") as stream:
                assert (await stream.next())[0] == "snapshot"
