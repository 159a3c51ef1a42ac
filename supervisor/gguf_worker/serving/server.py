"""HTTP: uvicorn as a part of this program, with limits on what a client can hold.

Whatever is served over HTTP is an ASGI application given to `http_server`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import anyio
import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from gguf_worker._tasks import plain_task_group

MAX_HEAD_BYTES = 16 * 1024
"""Of a request line with its headers: when so much has come and not their end, the client is refused."""
HEAD_TIMEOUT_S = 10.0
"""From the first byte of a request, or the connection's begin, to the end of its headers."""
KEEP_ALIVE_S = 30
"""How long a connection may be idle between two requests."""
STUCK_S = 60.0
"""How long a client may take nothing of an answer that waits for it."""
FINISH_S = 5
"""How long requests that are under way may take when the server is told to end."""


@asynccontextmanager
async def http_server(app: ASGIApp, sockets: Sequence[socket.socket]) -> AsyncIterator[None]:
    """Serves the application on listening sockets while this is open. Leaving it closes them, lets requests
    that are under way finish for `FINISH_S` seconds, and cuts off the rest."""
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    server = _EmbeddedServer(
        uvicorn.Config(
            app,
            http=_ImpatientProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=FINISH_S,
        )
    )
    async with plain_task_group() as tasks:
        tasks.start_soon(_serve_to_the_end, server, list(sockets), name="http server")
        try:
            yield
        finally:
            server.should_exit = True


async def _serve_to_the_end(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
    """Shielded: what cancels the caller must not cut off a request that can still finish."""
    with anyio.CancelScope(shield=True):
        await server.serve(sockets=sockets)


class _EmbeddedServer(uvicorn.Server):
    """Leaves the process's signals alone: they belong to the program that it is a part of."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _ImpatientProtocol(H11Protocol):
    """Ends a connection that does not finish its request's headers in time, or does not read its answer:
    uvicorn itself waits for ever, and each such connection would hold a descriptor, and what it was sent."""

    _deadline: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_deadline()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        in_head = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        if not in_head:
            self._end_deadline()
        elif self._deadline is None:
            self._start_deadline()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self.loop.call_later(STUCK_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._end_stuck()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_deadline()
        self._end_stuck()
        super().connection_lost(exc)

    def _start_deadline(self) -> None:
        self._deadline = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.abort)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end_stuck(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
