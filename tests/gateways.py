"""A gateway on loopback over workers of this process, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import openai

from fakes import PROMPT, SETTINGS, spec
from gguf_worker import Recipe, Route, ShardSpec
from gguf_worker.gateway.app import gateway_app
from gguf_worker.gateway.catalogue import OneModel
from gguf_worker.gateway.gateway import Gateway, GatewaySettings, Keys, open_gateway
from gguf_worker.gateway.model import ModelSettings, ServedModel
from gguf_worker.serving.address import Address, bound_address, listen
from gguf_worker.serving.server import http_server

NAME = "fake"
RESTARTED = replace(SETTINGS, restart=PROMPT)
"""Workers that come back."""


def halves(**changes: Any) -> list[ShardSpec]:
    """The fake model in two shards, four sessions with cells of their own."""
    recipe = changes.pop("recipe", Recipe(n_ctx=1024, kv_unified=False))
    return [spec((0, 6), recipe=recipe, **changes), spec((6, 12), recipe=recipe, **changes)]


@dataclass(slots=True, kw_only=True)
class Site:
    """A gateway that is served."""

    address: Address
    gateway: Gateway
    model: ServedModel
    route: Route

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def openai(self, **options: Any) -> openai.AsyncOpenAI:
        """The official client."""
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", **{"api_key": "none", "max_retries": 0, "timeout": 30.0, **options}
        )

    def http(self, **options: Any) -> httpx.AsyncClient:
        """A client that says what it is told to."""
        return httpx.AsyncClient(base_url=self.url, timeout=30.0, trust_env=False, **options)

    async def sessions(self) -> list[int]:
        """That are open, by stage."""
        return [(await worker.health()).sessions for worker in self.route.workers]

    async def nothing_is_open(self) -> None:
        """Returns when no stage has a session any more: one that was cancelled while it was opened is closed
        behind its answer."""
        with anyio.fail_after(10):
            while any(await self.sessions()):
                await anyio.lowlevel.checkpoint()

    async def cells(self) -> list[int]:
        """KV cells that they take."""
        return [(await worker.health()).kv_cells_used for worker in self.route.workers]


@asynccontextmanager
async def site(
    specs: Sequence[ShardSpec] | None = None,
    *,
    settings: ModelSettings | None = None,
    gateway_settings: GatewaySettings | None = None,
    keys: Keys | None = None,
) -> AsyncIterator[Site]:
    """Serves shards, the fake model's halves by default."""
    catalogue = OneModel(NAME)
    async with (
        Route.start(specs or halves(), settings=RESTARTED) as route,
        open_gateway(catalogue, keys=keys, settings=gateway_settings) as gateway,
    ):
        catalogue.model = await ServedModel.of_route(NAME, route, identity="test", settings=settings)
        sockets = listen(Address("127.0.0.1", 0))
        async with http_server(gateway_app(gateway), sockets):
            address = bound_address(sockets[0])
            yield Site(address=address, gateway=gateway, model=catalogue.model, route=route)
