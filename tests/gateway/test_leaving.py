"""Clients that leave, in every state of their request: nothing is done for them any more, at any stage."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import anyio.abc
import httpx
import openai
import pytest

from gateways import NAME, Site, halves, site
from gguf_worker import ShardSpec
from gguf_worker.gateway import reply
from gguf_worker.gateway.model import ModelSettings
from gguf_worker.node.grpc.tokens import Tokens

pytestmark = pytest.mark.anyio

KEY = "a-key-that-nobody-guesses"
LONG: dict[str, Any] = {"prompt": "Hello", "max_tokens": 900, "temperature": 1, "seed": 2, "stream": True,
                        "logit_bias": {"0": -100}}  # fmt: skip
"""A generation that does not end by itself: the token that ends one is banned."""


@asynccontextmanager
async def stream(client: httpx.AsyncClient, **more: Any) -> AsyncIterator[AsyncIterator[Any]]:
    """The events of a completion."""
    async with client.stream("POST", "/v1/completions", json={**LONG, **more}) as answer:
        assert answer.status_code == 200

        async def events() -> AsyncIterator[Any]:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line.removeprefix("data: "))

        yield events()


def _head(path: str, n_bytes: int) -> bytes:
    """Of a request whose body is yet to come."""
    return f"POST {path} HTTP/1.1\r\nhost: here\r\ncontent-length: {n_bytes}\r\n\r\n".encode()


async def _connect(served: Site) -> anyio.abc.SocketStream:
    return await anyio.connect_tcp(served.address.host, served.address.port)


async def until_free(served: Site) -> None:
    """Returns when nobody is served any more; a client does not hear of that."""
    with anyio.fail_after(20):
        while served.gateway.active or {*await served.sessions(), *await served.cells()} != {0}:
            await anyio.lowlevel.checkpoint()
    assert (served.model.admission.active, served.model.admission.waiting) == (0, 0)


async def test_client_that_leaves_a_stream() -> None:
    async with site() as served, served.http() as client:
        async with stream(client) as events:
            await anext(events)
            assert await served.sessions() == [1, 1]
        await until_free(served)
        assert (
            'gguf_worker_generations_total{finish_reason="cancelled"} 1.0'
            in (await client.get("/metrics")).text
        )


async def test_official_client_that_closes_its_stream() -> None:
    async with site() as served, served.openai() as client:
        events = await client.chat.completions.create(
            model=NAME,
            messages=[{"role": "user", "content": "Hello"}],
            stream=True,
            logit_bias={"0": -100},
            max_tokens=900,
        )
        async for _ in events:
            assert await served.sessions() == [1, 1]
            break
        await events.close()
        await until_free(served)


async def test_client_that_leaves_while_its_prompt_is_computed() -> None:
    """The second stage hangs in the prefill; the first one has its part already."""
    specs = halves()
    async with site([specs[0], _hanging(specs[1])]) as served, served.http() as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_ask, client)
            with anyio.fail_after(20):
                while (await served.route.workers[1].health()).state != "computing":
                    await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        await until_free(served)


async def test_client_that_leaves_the_queue() -> None:
    """The one behind it gets its turn as if it had never been there."""
    settings = ModelSettings(concurrency=1, queue=4)
    async with site(settings=settings) as served, served.http() as client, served.http() as second:
        admission = served.model.admission
        async with stream(client) as events:
            await anext(events)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_ask, second)
                with anyio.fail_after(20):
                    while admission.waiting != 1:
                        await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            with anyio.fail_after(20):
                while admission.waiting:
                    await anyio.lowlevel.checkpoint()
            assert admission.active == 1
        await until_free(served)


async def test_stream_that_waits_says_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """By comments, which clients skip."""
    monkeypatch.setattr(reply, "KEEP_ALIVE_S", 0.01)
    specs = halves()
    async with site([specs[0], _hanging(specs[1])]) as served, served.http() as client:
        async with client.stream("POST", "/v1/completions", json=LONG) as answer:
            lines = answer.aiter_lines()
            assert [await anext(lines) for _ in range(4)] == [": waiting", ""] * 2
        await until_free(served)


async def test_full_queue_is_told_at_once() -> None:
    settings = ModelSettings(concurrency=1, queue=0)
    async with site(settings=settings) as served, served.http() as client:
        async with stream(client) as events:
            await anext(events)
            refused = await client.post("/v1/completions", json={"prompt": "Hello"})
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["code"] == "queue_full"
            assert (await client.get("/health")).status_code == 200
        await until_free(served)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_full_queue_reads_no_body(path: str) -> None:
    """The refusal comes before the body, which then does no harm to the next request of the connection."""
    settings = ModelSettings(concurrency=1, queue=0)
    body = b'{"prompt": "Hello", "max_tokens": 1}'
    async with site(settings=settings) as served, served.http() as client:
        async with stream(client) as events, await _connect(served) as one:
            await anext(events)
            await one.send(_head(path, len(body)))
            with anyio.fail_after(20):
                refused = await one.receive()
            assert refused.startswith(b"HTTP/1.1 429 ")
            assert b"retry-after: " in refused
            await one.send(body + b"GET /health HTTP/1.1\r\nhost: here\r\n\r\n")
            with anyio.fail_after(20):
                told = refused
                while b'{"status":"ok"}' not in told:
                    told += await one.receive()
            assert told.count(b"HTTP/1.1 ") == 2
        await until_free(served)


@pytest.mark.parametrize("head", [b" HTTP/1.1\r\nconnection: close\r\n", b" HTTP/1.0\r\n"])
async def test_full_queue_is_heard_where_the_connection_ends(head: bytes) -> None:
    """Closing it with the body unread would reset it, and the answer would be lost with it."""
    settings = ModelSettings(concurrency=1, queue=0)
    async with site(settings=settings) as served, served.http() as client:
        async with stream(client) as events, await _connect(served) as one:
            await anext(events)
            length = b"content-length: 1000000\r\n\r\n"
            await one.send(b"POST /v1/completions" + head + b"host: here\r\n" + length)
            for _ in range(100):
                await one.send(b"a" * 10_000)
            told = b""
            with anyio.fail_after(20):
                async for chunk in one:
                    told += chunk
            assert told.startswith(b"HTTP/1.1 429 ")
            assert told.endswith(b"}}")
        await until_free(served)


async def test_full_queue_is_an_error_that_the_official_client_knows() -> None:
    settings = ModelSettings(concurrency=1, queue=0)
    async with site(settings=settings) as served, served.http() as client, served.openai() as asking:
        async with stream(client) as events:
            await anext(events)
            with pytest.raises(openai.RateLimitError) as refused:
                await asking.completions.create(model=NAME, prompt="Hello")
            assert refused.value.code == "queue_full"
            assert int(refused.value.response.headers["retry-after"]) >= 1
        await until_free(served)


async def test_full_queue_is_told_only_to_those_who_may_ask() -> None:
    settings = ModelSettings(concurrency=1, queue=0)
    known = {"authorization": f"Bearer {KEY}"}
    async with (
        site(settings=settings, keys=Tokens.of({KEY: "me"})) as served,
        served.http(headers=known) as client,
        stream(client) as events,
    ):
        await anext(events)
        for headers, status in (({"authorization": "Bearer wrong"}, 401), (known, 429)):
            answer = await client.post("/v1/completions", headers=headers, content=b"no JSON")
            assert answer.status_code == status
        assert (await client.post("/tokenize", json={"content": "Hello"})).status_code == 200


@pytest.mark.parametrize("stage", [0, 1])
async def test_worker_that_is_killed_makes_no_gap(stage: int) -> None:
    """SIGKILL in mid-stream: the client gets the text of an undisturbed run."""
    more = {"max_tokens": 300}  # so many that the worker dies in their midst, however fast it is
    async with site() as served, served.http() as client:
        async with stream(client, **more) as events:
            undisturbed = "".join([event["choices"][0]["text"] async for event in events])
        texts = []
        async with stream(client, **more) as events:
            async for event in events:
                texts.append(event["choices"][0]["text"])
                if len(texts) == 5:
                    os.kill(served.route.workers[stage].pid, signal.SIGKILL)
        assert "".join(texts) == undisturbed
        page = (await client.get("/metrics")).text
        layers = ("0:6", "6:12")[stage]
        assert f'gguf_worker_stage_replays_total{{layers="{layers}"}} 1.0' in page
        await until_free(served)


async def test_drain_lets_requests_finish_and_takes_no_new_ones() -> None:
    async with site() as served, served.http() as client, served.http() as other:
        texts = []
        async with stream(client, max_tokens=30) as events:
            texts.append(await anext(events))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(served.gateway.drain, 20)
                await anyio.lowlevel.checkpoint()
                refused = await other.post("/v1/completions", json={"prompt": "Hello"})
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
                assert (await other.get("/health")).status_code == 503
                texts += [event async for event in events]
        assert texts[-1]["choices"][0]["finish_reason"] == "length"
        assert served.gateway.active == 0


async def test_what_is_cut_off_is_told() -> None:
    """As the last event of its stream."""
    async with site() as served, served.http() as client:
        async with stream(client) as events:
            await anext(events)
            assert not await served.gateway.drain(0)
            await served.gateway.cut_off()
            last = [event async for event in events][-1]
        assert last["error"]["code"] == "stopped"
        await until_free(served)


def _hanging(spec: ShardSpec) -> ShardSpec:
    return replace(spec, fault_plan="hang@1")


async def _ask(client: httpx.AsyncClient) -> None:
    await client.post("/v1/completions", json={**LONG, "stream": False})
