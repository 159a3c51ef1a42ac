"""What a gateway's status page is told: generations, tokens as they come, and the routes of a mesh."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from gateways import NAME, site
from gguf_worker.gateway.gateway import open_gateway
from gguf_worker.gateway.mesh_catalogue import MeshModels
from gguf_worker.gateway.model import ModelSettings
from gguf_worker.gateway.recent import KEPT
from gguf_worker.gateway.shown import GatewayShown
from meshes import mesh_here

pytestmark = pytest.mark.anyio

LONG: dict[str, Any] = {"prompt": "Hello", "max_tokens": 200, "stream": True, "logit_bias": {"0": -100}}


async def test_generation_that_ended_is_shown() -> None:
    """With the times of its stages and without its text."""
    async with site() as here, here.http() as client:
        answer = await client.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 3})
        (shown,) = here.gateway.figures.recent.since(0)
    usage = answer.json()["usage"]
    assert shown["model"] == NAME
    assert shown["request_id"] == answer.headers["x-request-id"]
    assert (shown["prompt_tokens"], shown["tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    stages: Any = shown["stages"]
    assert [(stage["layers"], stage["forwards"], stage["replays"]) for stage in stages] == [
        ("0:6", usage["completion_tokens"], 0),
        ("6:12", usage["completion_tokens"], 0),
    ]
    assert "Hello" not in json.dumps(shown)


async def test_tokens_count_while_they_come() -> None:
    """So that a long generation is a rate, and no jump at its end; one that is left counts as it was."""
    async with site() as here, here.http() as client:
        figures = here.gateway.figures
        async with client.stream("POST", "/v1/completions", json=LONG) as answer:
            lines = answer.aiter_lines()
            for _ in range(8):
                await anext(lines)
            assert figures.drawn >= 4
            assert figures.recent.end == 0
        with anyio.fail_after(20):
            while here.gateway.active:
                await anyio.lowlevel.checkpoint()
        assert figures.drawn == figures.tokens >= 4
        assert [one["finish_reason"] for one in figures.recent.since(0)] == ["cancelled"]


async def test_last_generations_are_kept() -> None:
    """So many, and no more."""
    async with site() as here, here.http() as client:
        body = {"prompt": ["a", "b", "c", "d"], "max_tokens": 1, "n": 9}
        assert (await client.post("/v1/completions", json=body)).status_code == 200
        assert here.gateway.figures.recent.end == 36
        assert len(here.gateway.figures.recent.since(0)) == KEPT


@pytest.mark.usefixtures("grpc")
async def test_route_of_a_mesh_is_shown_before_it_is_asked_for(tmp_path: Path) -> None:
    """With its nodes, whose loss is seen; and without any, that there is none."""
    async with mesh_here(tmp_path) as here:
        catalogue = MeshModels(here.mesh, ModelSettings())
        async with open_gateway(catalogue) as gateway:
            shown = GatewayShown(gateway, catalogue.routes_shown)
            status: Any = (await shown.look()).status
            (route,) = status["routes"]
            assert status["phase"] == "ready"
            assert [(stage["layers"], stage["node"], stage["state"]) for stage in route["stages"]] == [
                ("0:4", "first", "ready"),
                ("4:8", "middle", "ready"),
                ("8:12", "last", "ready"),
            ]
            assert route["stages"][0]["memory"]["weights_bytes"] > 0
            await catalogue.get(route["model"])
            await here.tracker.withdraw("middle", here.nodes["middle"].service.instance)
            (route,) = shown.status()["routes"]  # type: ignore[misc]
            assert [stage["state"] for stage in route["stages"]] == ["ready", "lost", "ready"]
            json.dumps(shown.status())


async def test_gateway_without_nodes_is_starting(tmp_path: Path) -> None:
    """It shows no route, and that it stops when it does."""
    async with mesh_here(tmp_path, {}) as here:
        catalogue = MeshModels(here.mesh, ModelSettings())
        async with open_gateway(catalogue) as gateway:
            shown = GatewayShown(gateway, catalogue.routes_shown)
            assert (shown.status()["phase"], shown.status()["routes"]) == ("starting", [])
            await gateway.drain(0)
            assert shown.status()["phase"] == "draining"
