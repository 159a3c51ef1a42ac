"""The API of `gguf-worker serve`, and `gguf-worker gateway`, as their users start them."""

from __future__ import annotations

import json
import signal
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx
import pytest

from certified import certified
from commandline import CommandLine
from gguf_worker.certification import read_certificate
from gguf_worker.testing import Baseline
from gguf_worker.testing.mesh.node import NodeProcess, NodeSpec
from gguf_worker.testing.nats import NatsServer
from gguf_worker.testing.process import LineProcess
from served import MODEL, Served, serving

HTTP = ("--http", "127.0.0.1:0")


def ask(served: Served, path: str, body: dict[str, Any], **headers: str) -> tuple[int, str]:
    """Status and text."""
    host, port = served.address
    request = urllib.request.Request(
        f"http://{host}:{port}{path}",
        json.dumps(body).encode(),
        {"content-type": "application/json", **headers},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_whole_model_has_the_api_beside_its_pages(gguf_worker: CommandLine) -> None:
    """Under the name of its file or its alias; the status tells of it."""
    with serving(gguf_worker, "--shards", "2", "--alias", "mine", *HTTP) as served:
        served.wait_logged("gateway_ready")
        assert json.loads(served.get("/v1/models")[2])["data"][0]["id"] == "mine"
        chat = {"model": "mine", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
        status, text = ask(served, "/v1/chat/completions", chat)
        assert (status, json.loads(text)["usage"]["completion_tokens"] <= 3) == (200, True)
        assert served.get("/health")[0] == 200
        assert served.get("/healthz")[0] == 200
        assert served.status()["gateway"]["requests"] == 1
        assert "gguf_worker_gateway_requests_total" in served.get("/metrics")[2]
        assert served.stop() == 0


def test_certificate_that_stands_for_the_workers_is_used(gguf_worker: CommandLine, tmp_path: Path) -> None:
    """Without a node; the log says what it changes."""
    path = anyio.run(lambda: certified(gguf_worker, tmp_path, cuts="6"))
    with serving(gguf_worker, "--shards", "2", "--certificate", str(path), *HTTP) as served:
        used = served.wait_logged("certificate_used")
        assert (used["certificate"], used["chunk_invariant"]) == (read_certificate(path).id, True)
        served.wait_logged("gateway_ready")
        assert served.stop() == 0


def test_certificate_of_something_else_changes_nothing(gguf_worker: CommandLine, tmp_path: Path) -> None:
    """The log says what differs."""
    path = anyio.run(lambda: certified(gguf_worker, tmp_path, cuts="6"))
    options = ("--shards", "2", "--ctx-size", "512", "--certificate", str(path), *HTTP)
    with serving(gguf_worker, *options) as served:
        unused = served.wait_logged("certificate_unused")
        assert "recipe.n_ctx: expected 4096, actual 512" in unused["message"]
        served.wait_logged("gateway_ready")
        assert served.stop() == 0


def test_certificate_that_cannot_be_read_is_told(gguf_worker: CommandLine) -> None:
    with serving(gguf_worker, "--certificate", "no such file", *HTTP) as served:
        assert served.wait() == 1
        assert "no such file" in served.logged("failed")[0]["message"]


def test_part_of_a_model_has_no_api(gguf_worker: CommandLine) -> None:
    with serving(gguf_worker, "--layers", "0:6", *HTTP) as served:
        served.wait_logged("gateway_off")
        status, text = ask(served, "/v1/completions", {"prompt": "Hi"})
        assert (status, json.loads(text)["error"]["code"]) == (404, "model_not_found")
        assert "layers" in text
        assert served.stop() == 0


def test_request_that_runs_finishes_before_the_stop(gguf_worker: CommandLine) -> None:
    with serving(gguf_worker, *HTTP) as served:
        served.wait_logged("gateway_ready")
        answers: list[tuple[int, str]] = []
        body = {"prompt": "Hi", "max_tokens": 400, "logit_bias": {"0": -100}}
        asking = threading.Thread(target=lambda: answers.append(ask(served, "/v1/completions", body)))
        asking.start()
        while not served.status()["gateway"]["active"] and not answers:
            pass
        assert served.stop(signal.SIGTERM) == 0
        asking.join(60)
        status, text = answers[0]
        assert status == 200
        assert json.loads(text)["choices"][0]["finish_reason"] == "length"


def test_api_that_others_reach_needs_a_key(gguf_worker: CommandLine) -> None:
    """Without one the pages are served and the API is not; with one it asks for it."""
    with serving(gguf_worker, "--http", "0.0.0.0:0") as served:
        assert served.wait_logged("gateway_off")["address"].startswith("0.0.0.0")
        served.wait_notified("READY=1")
        assert ask(served, "/v1/completions", {"prompt": "Hi"})[0] == 404
        assert served.stop() == 0
    key = "0123456789abcdef"
    with serving(gguf_worker, "--http", "0.0.0.0:0", GGUF_WORKER_API_KEY=key) as served:
        served.wait_logged("gateway_ready")
        body = {"prompt": "Hi", "max_tokens": 1}
        assert ask(served, "/v1/completions", body)[0] == 401
        assert ask(served, "/v1/completions", body, authorization=f"Bearer {key}")[0] == 200
        assert served.stop() == 0
        assert not [line for line in served.log if key in json.dumps(line)]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--http", "127.0.0.1:0"), "no tracker was given"),
        (("--http", "nowhere", "--tracker", "nats://127.0.0.1:1"), "--http"),
        (("--tracker", "nats://127.0.0.1:1", "--http", "127.0.0.1:0", "--queue", "-1"), "--queue"),
    ],
)
def test_gateway_that_cannot_be(gguf_worker: CommandLine, arguments: tuple[str, ...], told: str) -> None:
    done = gguf_worker("gateway", *arguments)
    assert done.returncode == 2
    assert told in done.stderr


@pytest.mark.anyio
async def test_gateway_over_a_node(gguf_worker: CommandLine, tmp_path: Path) -> None:
    """Finds the model of a node that comes after it, is asked for it by name, and stops in good order."""
    certificate = await certified(gguf_worker, tmp_path, cuts="6")
    with Baseline():
        async with NatsServer(jetstream=True) as server:
            spec = NodeSpec(
                name="whole",
                model=MODEL,
                layers=(0, 12),
                tracker=server.url,
                folder=tmp_path,
                certificates=(certificate,),
                options=("--engine", "fake"),
                environment=gguf_worker.environment,
            )
            command = gguf_worker.command("gateway", "--tracker", server.url, *HTTP, "--json")
            async with LineProcess(command, environment=gguf_worker.environment) as gateway:
                line = json.loads(await gateway.wait_line(lambda text: "http_listening" in text))
                url = f"http://{line['address']}"
                async with NodeProcess(spec) as node, httpx.AsyncClient(base_url=url, timeout=60) as client:
                    assert (await client.get("/health")).status_code == 503
                    await node.wait_ready()
                    with anyio.fail_after(30):
                        while (await client.get("/health")).status_code != 200:
                            pass
                    (card,) = (await client.get("/v1/models")).json()["data"]
                    asked = {"model": card["id"], "prompt": "Hello", "max_tokens": 3}
                    answer = await client.post("/v1/completions", json=asked)
                    assert answer.status_code == 200, answer.text
                    assert answer.json()["usage"]["completion_tokens"] <= 3
                    assert "gguf_worker_gateway_requests_total" in (await client.get("/metrics")).text
                await gateway.end(signal.SIGTERM)
                assert gateway.status is not None
                assert gateway.status.exit_code == 0
    assert gguf_worker.workers() == []
