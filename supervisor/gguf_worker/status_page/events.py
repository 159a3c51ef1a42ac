"""/v1/events: the board as server-sent events.

First a `snapshot` with all history, then a `change` after each look. Each has the whole state of its moment,
so a reader that is slow misses moments and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from gguf_worker._tasks import plain_task_group
from gguf_worker.status_page.board import Board, Seen

MOST_WATCHERS = 64
"""Pages that may be open at the same time."""
KEEP_ALIVE_S = 15.0
"""A stream that has been silent for so long says that it lives."""

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
]

Guard = Callable[[str | None], object]
"""Gets a request's `authorization`; raises where it may not be answered."""


class EventStream:
    """An ASGI application: one answer for each reader that does not end before the board does."""

    def __init__(self, board: Board, guard: Guard | None) -> None:
        self._board = board
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._guard is not None:
            self._guard(Headers(scope=scope).get("authorization"))
        if self._board.watchers >= MOST_WATCHERS:
            text = f"{MOST_WATCHERS} pages watch already\n"
            await PlainTextResponse(text, status_code=503, headers={"retry-after": "10"})(
                scope, receive, send
            )
            return
        with self._board.watched():
            async with plain_task_group() as tasks:
                tasks.start_soon(_leave_with_client, receive, tasks.cancel_scope)
                await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
                if scope["method"] == "GET":  # not HEAD
                    await self._tell_news(send)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                tasks.cancel_scope.cancel()

    async def _tell_news(self, send: Send) -> None:
        kind, seen = "snapshot", Seen()
        while True:
            text = ": alive\n\n"
            with anyio.move_on_after(KEEP_ALIVE_S):
                if not await self._board.wait_news(seen):
                    return
                news, seen = self._board.news(seen)
                text, kind = f"event: {kind}\ndata: {news}\n\n", "change"
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


async def _leave_with_client(receive: Receive, reading: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    reading.cancel()
