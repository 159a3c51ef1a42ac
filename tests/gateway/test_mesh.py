"""The gateway over nodes: models by name, a node that is lost, a client that leaves."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest

from gguf_worker.gateway.app import gateway_app
from gguf_worker.gateway.gateway import Gateway, open_gateway
from gguf_worker.gateway.mesh_catalogue import MeshModels
from gguf_worker.gateway.model import ModelSettings
from gguf_worker.node.tracker.formation import routes
from gguf_worker.serving.address import Address, bound_address, listen
from gguf_worker.serving.server import http_server
from meshes import MeshHere, mesh_here

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("grpc")]

LONG: dict[str, Any] = {"prompt": "Hello", "max_tokens": 200, "temperature": 1, "seed": 2, "stream": True,
                        "logit_bias": {"0": -100}}  # fmt: skip


@asynccontextmanager
async def gateway_of(here: MeshHere) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    """A gateway over a mesh, and a client of it."""
    catalogue = MeshModels(here.mesh, ModelSettings())
    async with open_gateway(catalogue) as gateway:
        sockets = listen(Address("127.0.0.1", 0))
        url = f"http://{bound_address(sockets[0])}"
        async with (
            http_server(gateway_app(gateway), sockets),
            httpx.AsyncClient(base_url=url, timeout=30.0, trust_env=False) as client,
        ):
            yield gateway, client


async def streamed(client: httpx.AsyncClient, after: int = 0, then: Any = None) -> str:
    """The text of a long completion; calls `then` when so many events have come."""
    texts: list[str] = []
    async with client.stream("POST", "/v1/completions", json=LONG) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                texts.append(event["choices"][0]["text"])
                if len(texts) == after and then is not None:
                    then()
    return "".join(texts)


async def test_models_of_a_mesh(tmp_path: Path) -> None:
    """None without nodes; the one that they form; none again when a part is gone."""
    async with mesh_here(tmp_path, {}) as here, gateway_of(here) as (_, client):
        assert (await client.get("/v1/models")).json()["data"] == []
        assert (await client.get("/health")).status_code == 503
        assert (await client.post("/v1/completions", json={"prompt": "x"})).status_code == 404
    async with mesh_here(tmp_path) as here, gateway_of(here) as (gateway, client):
        (card,) = (await client.get("/v1/models")).json()["data"]
        assert (await client.get(f"/v1/models/{card['id']}")).json() == card
        assert (await client.get("/health")).status_code == 200
        asked = {"model": card["id"], "prompt": "Hello", "max_tokens": 4}
        answer = await client.post("/v1/completions", json=asked)
        assert (answer.status_code, answer.json()["model"]) == (200, card["id"])
        (model,) = gateway.catalogue.open_models()
        assert model.admission.slots == 4, "as many as the nodes have sessions for"


async def test_model_whose_nodes_are_full_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes whose sessions are all taken, most often by the gateway itself, are no reason to say that there
    is no model."""
    async with mesh_here(tmp_path) as here, gateway_of(here) as (_, client):
        asked = {"prompt": "Hello", "max_tokens": 4}
        assert (await client.post("/v1/completions", json=asked)).status_code == 200
        tracker = here.mesh.tracker
        full = deepcopy(tracker.view())
        for registration in full.registrations.values():
            for stage in registration.stages:
                stage.load.sessions = stage.capacity.max_sessions
        assert not routes(full).routes
        monkeypatch.setattr(tracker, "view", lambda: full)
        assert (await client.get("/health")).status_code == 200
        assert len((await client.get("/v1/models")).json()["data"]) == 1
        assert (await client.post("/v1/completions", json=asked)).status_code == 200


async def test_model_that_opens_slowly_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mesh_here(tmp_path) as here:
        catalogue = MeshModels(here.mesh, ModelSettings())
        ((name, plan),) = catalogue._known().items()
        open_at_once = catalogue._open

        async def open_(asked: str, its_plan: Any) -> Any:
            if asked == "slow":
                await anyio.sleep_forever()
            return await open_at_once(asked, its_plan)

        monkeypatch.setattr(catalogue, "_known", lambda: {name: plan, "slow": plan})
        monkeypatch.setattr(catalogue, "_open", open_)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(catalogue.get, "slow")
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(20):
                assert await catalogue.get(name) is await catalogue.get(name)
            tasks.cancel_scope.cancel()


async def test_worker_of_a_node_that_is_killed_makes_no_gap(tmp_path: Path) -> None:
    async with mesh_here(tmp_path) as here, gateway_of(here) as (_, client):
        undisturbed = await streamed(client)
        assert await streamed(client, 5, lambda: here.kill_worker("middle")) == undisturbed
        page = (await client.get("/metrics")).text
        assert 'gguf_worker_stage_replays_total{layers="4:8"} 1.0' in page


async def test_client_that_leaves_is_forgotten_by_every_node(tmp_path: Path) -> None:
    async with mesh_here(tmp_path) as here, gateway_of(here) as (gateway, client):
        async with client.stream("POST", "/v1/completions", json=LONG | {"max_tokens": 3000}) as answer:
            await anext(answer.aiter_lines())
        with anyio.fail_after(20):
            while gateway.active or any(node.service.streams.open_sessions for node in here.nodes.values()):
                await anyio.lowlevel.checkpoint()
