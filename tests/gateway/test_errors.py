"""Errors over HTTP: OpenAI's shape, the right status, and nothing that a request can break."""

from __future__ import annotations

import json

import openai
import pytest

from gateways import NAME, site
from gguf_worker.gateway.gateway import GatewaySettings
from gguf_worker.node.grpc.tokens import Tokens

pytestmark = pytest.mark.anyio

KEY = "a-key-that-nobody-guesses"


async def test_errors_have_the_shape_of_openai() -> None:
    async with site() as served, served.http() as client:
        for answer, status, code in (
            (await client.get("/v1/nothing"), 404, "not_found"),
            (await client.get("/v1/completions"), 405, "method_not_allowed"),
            (await client.post("/v1/completions", content=b"{"), 400, "invalid_json"),
            (await client.post("/v1/completions", json={}), 400, "missing_required_parameter"),
            (
                await client.post("/v1/completions", json={"prompt": "x", "model": "y"}),
                404,
                "model_not_found",
            ),
            (await client.post("/v1/completions", json={"prompt": [300]}), 400, "invalid_value"),
            (await client.post("/v1/completions", json={"prompt": "x", "best": 1}), 400, "unknown_parameter"),
            (await client.get("/v1/models/other"), 404, "model_not_found"),
        ):
            assert answer.status_code == status
            error = answer.json()["error"]
            assert error["code"] == code
            assert set(error) == {"message", "type", "param", "code"}
            assert answer.headers["x-request-id"]


async def test_context_that_is_too_small_is_told_before_anything_is_computed() -> None:
    async with site() as served, served.http() as client:
        for body in ({"prompt": "a" * 1024}, {"prompt": "a", "max_tokens": 1024}, {"prompt": [2] * 2000}):
            answer = await client.post("/v1/completions", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
        fits = await client.post("/v1/completions", json={"prompt": "a" * 1000, "max_tokens": 24})
        assert fits.status_code == 200
        assert served.gateway.figures.prompt_tokens == 1001
        usual = await client.post("/v1/completions", json={"prompt": "a" * 1018})
        assert usual.json()["usage"]["completion_tokens"] <= 6, "what there is room for"


async def test_body_that_is_too_large() -> None:
    """Whether it says so or not."""
    settings = GatewaySettings(max_body_bytes=1000)
    async with site(gateway_settings=settings) as served, served.http() as client:

        async def pieces() -> object:
            for _ in range(20):
                yield b" " * 100

        for content in (b" " * 1001, pieces()):
            answer = await client.post("/v1/completions", content=content)  # type: ignore[arg-type]
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


async def test_error_does_not_send_back_all_that_it_got() -> None:
    """However long a name is that it quotes."""
    long = "x" * 100_000
    async with site() as served, served.http() as client:
        for body in ({"prompt": "x", "model": long}, {"prompt": "x", long: 1}):
            answer = await client.post("/v1/completions", json=body)
            assert answer.status_code in (400, 404)
            assert len(answer.text) < 5000


async def test_key_is_asked_for() -> None:
    """By everything that computes or tells of models; its account pays."""
    async with site(keys=Tokens.of({KEY: "me"})) as served, served.http() as client:
        for headers in ({}, {"authorization": "Bearer other"}, {"authorization": KEY}):
            for method, path in (("GET", "/v1/models"), ("POST", "/v1/completions"), ("POST", "/tokenize")):
                answer = await client.request(method, path, headers=headers)
                assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
                assert KEY not in answer.text
        assert (await client.get("/health")).status_code == 200
        async with served.openai(api_key=KEY) as official:
            assert (await official.models.list()).data[0].id == NAME
            completion = await official.completions.create(model=NAME, prompt="Hello", max_tokens=2)
            assert completion.usage is not None
        async with served.openai() as stranger:
            with pytest.raises(openai.AuthenticationError):
                await stranger.models.list()


async def test_request_id_goes_through() -> None:
    async with site() as served, served.http(headers={"x-request-id": "mine"}) as client:
        answer = await client.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 2})
        assert answer.headers["x-request-id"] == "mine"


async def test_deadline_is_504() -> None:
    settings = GatewaySettings(request_timeout_s=0.0)
    async with site(gateway_settings=settings) as served, served.http() as client:
        answer = await client.post("/v1/completions", json={"prompt": "Hello"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline")
        await served.nothing_is_open()


async def test_deadline_ends_the_wait_for_others_templates() -> None:
    settings = GatewaySettings(request_timeout_s=0.1)
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    async with site(gateway_settings=settings) as served, served.http() as client:
        async with served.gateway.prompts._aside._lock:
            answer = await client.post("/v1/chat/completions", json=chat)
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline")


async def test_texts_and_tokens() -> None:
    async with site() as served, served.http() as client:
        answer = await client.post("/tokenize", json={"content": "hé", "with_pieces": True})
        pieces = answer.json()["tokens"]
        assert [piece["id"] for piece in pieces] == list("hé".encode())
        assert [piece["piece"] for piece in pieces] == ["h", "bytes:\\xc3", "bytes:\\xa9"]
        tokens = [piece["id"] for piece in pieces]
        assert (await client.post("/detokenize", json={"tokens": tokens})).json() == {"content": "hé"}
        assert (await client.post("/detokenize", json={"tokens": []})).json() == {"content": ""}


async def test_metrics_tell_of_requests() -> None:
    async with site() as served, served.http() as client:
        await client.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 2, "temperature": 0})
        await client.post("/v1/completions", json={})
        page = (await client.get("/metrics")).text
        for status in (200, 400):
            assert f'requests_total{{path="/v1/completions",status="{status}"}} 1.0' in page
        assert 'gguf_worker_gateway_slots{model="fake"} 4.0' in page
        assert json.loads(json.dumps(served.gateway.status()))["requests"] == 2
