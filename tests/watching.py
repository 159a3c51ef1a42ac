"""Reading a status page's events, and a subject that does what a test says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx

from gguf_worker.serving.address import Address
from gguf_worker.status_page.ring import Ring
from gguf_worker.status_page.subject import Picture

FOREVER_S = 1e6
"""A period that no test lives to see: the board looks when the subject has changed, and not else."""


class Told:
    """A subject that is looked at when the test says so; its status counts the looks."""

    def __init__(self, **status: object) -> None:
        self.done = 0
        self.status = status
        self.looks = 0
        self.looked = anyio.Event()
        self._generations: Ring[dict[str, object]] = Ring(4)
        self._changed = anyio.Event()

    @property
    def generations(self) -> Ring[dict[str, object]]:
        return self._generations

    async def look(self) -> Picture:
        self.looks += 1
        self.looked.set()
        self.looked = anyio.Event()
        return Picture(status={"look": self.looks, **self.status}, done=self.done, unit="tokens")

    def next_change(self) -> anyio.Event:
        return self._changed

    def change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def look_again(self) -> None:
        """Has the board look once more."""
        looked = self.looked
        self.change()
        with anyio.fail_after(20):
            await looked.wait()


class Events:
    """An open stream of events."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._lines = answer.aiter_lines()

    async def next(self) -> tuple[str, Any]:
        """The next event: its kind and what it says. Raises StopAsyncIteration at the stream's end."""
        kind = ""
        with anyio.fail_after(20):
            while True:
                name, _, value = (await anext(self._lines)).partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    return kind, json.loads(value)

    async def until(self, key: str, value: object) -> Any:
        """The first event whose status has this."""
        while True:
            _, event = await self.next()
            if event["status"].get(key) == value:
                return event


@asynccontextmanager
async def events_at(address: Address, **headers: str) -> AsyncIterator[Events]:
    """Reads /v1/events."""
    async with (
        httpx.AsyncClient(base_url=f"http://{address}", timeout=30.0, trust_env=False) as client,
        client.stream("GET", "/v1/events", headers=headers) as answer,
    ):
        yield Events(answer)
