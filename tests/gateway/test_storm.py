"""Many clients at once, some of which leave when they like: everything is as it was when they are gone."""

from __future__ import annotations

import random
import time
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest

from gateways import site
from gguf_worker.gateway.model import ModelSettings
from gguf_worker.testing.baseline import Footprint

pytestmark = pytest.mark.anyio

CLIENTS = 40
LASTS_S = 3.0


async def ask_and_leave(client: httpx.AsyncClient, chance: random.Random, until: float) -> None:
    """Asks again and again; leaves each request somewhere, or stays to its end."""
    while time.monotonic() < until:
        body: dict[str, Any] = {
            "prompt": "Hello" * chance.randrange(1, 20),
            "max_tokens": chance.randrange(1, 60),
            "n": chance.choice([1, 1, 1, 3]),
            "stream": chance.random() < 0.7,
            "seed": chance.randrange(100),
        }
        with anyio.move_on_after(chance.choice([0.0, 0.01, 0.05, 0.2, 30])):
            answer = await client.post("/v1/completions", json=body)
            assert answer.status_code in (200, 429), answer.text


async def test_storm_leaves_nothing(note: Any) -> None:
    settings = ModelSettings(queue=16)
    chance = random.Random(6)
    async with site(settings=settings) as served:
        async with served.http() as client:
            await client.get("/health")
        before = Footprint.now()
        each_its_own = httpx.Limits(max_keepalive_connections=0)
        async with served.http(limits=each_its_own) as client, anyio.create_task_group() as tasks:
            until = time.monotonic() + LASTS_S
            for _ in range(CLIENTS):
                tasks.start_soon(ask_and_leave, client, random.Random(chance.random()), until)
        with anyio.fail_after(20):
            while served.gateway.active or {*await served.sessions(), *await served.cells()} != {0}:
                await anyio.lowlevel.checkpoint()
            while Footprint.now().left_since(before):  # connections end a moment after their requests
                await anyio.lowlevel.checkpoint()
        admission = served.model.admission
        assert (admission.active, admission.cells_used, admission.waiting) == (0, 0, 0)
        assert all(supervisor.restarts == 0 for supervisor in served.route.supervisors)
        note(f"gateway storm: {served.gateway.figures.requests} requests of {CLIENTS} clients")
