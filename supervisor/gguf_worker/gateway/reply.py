"""What goes back to a client: one JSON object, or a stream of events (SSE) as OpenAI writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping

import anyio
from starlette.types import Send

from gguf_worker.gateway.errors import CLIENT_GONE, ApiError

KEEP_ALIVE_S = 10.0
"""A stream that has been silent for so long says that it lives."""


class Reply:
    """The answer to one request. An error is a status of its own as long as nothing was sent, and then the
    stream's last event."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lock = anyio.Lock(fast_acquire=True)  # or every event would wait for a turn of the event loop
        self._sent_at = anyio.current_time()
        self.status = CLIENT_GONE
        """That the client got."""
        self.is_complete = False
        """Whether all of it was sent."""
        self.headers: dict[str, str] = {}
        """That go with it, whatever it is."""

    @property
    def has_begun(self) -> bool:
        """Whether a status was sent."""
        return self.status != CLIENT_GONE

    async def json(
        self, body: object, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """The whole answer."""
        raw = _dumps(body)
        about = {"content-type": "application/json", "content-length": str(len(raw)), **(headers or {})}
        await self._begin(status, about)
        await self._body(raw, more=False)

    async def error(self, error: ApiError) -> None:
        """The answer where there is no other."""
        if self.has_begun:
            await self.event(error.body())
            await self.end()
        else:
            await self.json(error.body(), status=error.status, headers=error.headers())

    # ---- streams ----

    async def event(self, body: object) -> None:
        """One event."""
        await self._stream(b"data: " + _dumps(body) + b"\n\n")

    async def done(self) -> None:
        """The event that OpenAI's streams end with."""
        await self._stream(b"data: [DONE]\n\n")
        await self.end()

    async def end(self) -> None:
        """Nothing comes any more."""
        async with self._lock:
            await self._body(b"", more=False)

    async def keep_alive(self) -> None:
        """Writes a comment whenever nothing was sent for a while; until it is cancelled."""
        while True:
            left_s = self._sent_at + KEEP_ALIVE_S - anyio.current_time()
            if left_s > 0:
                await anyio.sleep(left_s)
            else:
                await self._stream(b": waiting\n\n")

    async def _stream(self, raw: bytes) -> None:
        async with self._lock:
            if not self.has_begun:
                about = {
                    "content-type": "text/event-stream; charset=utf-8",
                    "cache-control": "no-cache",
                    "x-accel-buffering": "no",  # nginx would hold events back
                }
                await self._begin(200, about)
            await self._body(raw, more=True)
            self._sent_at = anyio.current_time()

    # ---- ASGI ----

    async def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        named = {**self.headers, **headers}
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in named.items()]
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _body(self, raw: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": raw, "more_body": more})
        self.is_complete = not more


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Once for all: `json.dumps` makes an encoder for each call that has options."""


def _dumps(body: object) -> bytes:
    return _encode(body).encode("utf-8", "replace")
