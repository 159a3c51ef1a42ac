"""OpenAI's API over a catalogue, on loopback, with a client: for faults that befall what a client reads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gguf_worker.gateway.app import gateway_app
from gguf_worker.gateway.catalogue import Catalogue, OneModel
from gguf_worker.gateway.gateway import Gateway, open_gateway
from gguf_worker.gateway.model import ServedModel
from gguf_worker.generation.replay import ReplaySettings
from gguf_worker.generation.route import Route
from gguf_worker.serving.address import Address, bound_address, listen
from gguf_worker.serving.server import http_server
from gguf_worker.supervision.settings import WorkerSettings
from gguf_worker.supervision.spec import ShardSpec
from gguf_worker.testing.streams import Asked, Told, Took, read

if TYPE_CHECKING:  # the client is a library of tests
    import openai

TEXT_S = 1200.0
"""No text may take longer, whatever is killed."""
EVENT = b"data: {"
"""How an event begins."""


class Paced:
    """An application whose streams wait for their reader: what is behind an event is generated when the
    reader has taken the event. One stream at a time."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._sent = self._taken = 0
        self._moved = anyio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_paced(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.start":
                self._sent = self._taken = 0
            elif message["body"].startswith(EVENT):
                self._sent += 1
                while self._taken < self._sent:
                    await self._moved.wait()

        await self._app(scope, receive, send_paced)

    def take(self) -> None:
        """The reader has one more."""
        self._taken += 1
        self._moved.set()
        self._moved = anyio.Event()


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """The API that is served, and a client of it."""

    gateway: Gateway
    client: openai.AsyncOpenAI
    model: str
    _pace: Paced

    async def tell(self, asked: Asked, took: Took, *, is_held: bool = False) -> Told:
        """Reads a text; while `took` does something the next token is drawn, or none at all where it is held.
        Raises as `read`, and TimeoutError."""
        with anyio.fail_after(TEXT_S):
            return await read(self.client, self.model, asked, took, self._pace.take, is_held=is_held)

    @property
    def route(self) -> Route:
        """Of the only model that is open."""
        (model,) = self.gateway.catalogue.open_models()
        return model.route

    @property
    def replays(self) -> int:
        """Stages that the last text brought back."""
        recent = self.gateway.figures.recent
        (last,) = recent.since(recent.end - 1)
        stages = last["stages"]
        assert isinstance(stages, list)
        return sum(stage["replays"] for stage in stages)


@asynccontextmanager
async def api_over(catalogue: Catalogue) -> AsyncIterator[Api]:
    """Serves a catalogue that has one model. No text goes further than one token ahead of its reader."""
    import openai

    async with open_gateway(catalogue) as gateway:
        pace = Paced(gateway_app(gateway))
        sockets = listen(Address("127.0.0.1", 0))
        url = f"http://{bound_address(sockets[0])}/v1"
        async with (
            http_server(pace, sockets),
            openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=TEXT_S) as client,
        ):
            (card,) = catalogue.cards()
            yield Api(gateway=gateway, client=client, model=card.id, _pace=pace)


@asynccontextmanager
async def api_of_shards(
    shards: Sequence[ShardSpec],
    *,
    settings: WorkerSettings | None = None,
    replay: ReplaySettings | None = None,
) -> AsyncIterator[Api]:
    """Serves a model of workers that live as long as this is open."""
    catalogue = OneModel("model")
    async with Route.start(shards, settings=settings, replay=replay) as route:
        catalogue.model = await ServedModel.of_route(catalogue.name, route, identity="these shards")
        async with api_over(catalogue) as api:
            yield api


async def undisturbed(whole: ShardSpec, texts: Sequence[Asked]) -> list[Told]:
    """What one worker that has the whole model tells."""

    async def go_on(_: int) -> None:
        pass

    async with api_of_shards([whole]) as api:
        return [await api.tell(asked, go_on) for asked in texts]
