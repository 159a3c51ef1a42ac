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
MAX_UNWANTED_BYTES = 8 << 20
"""Of a body that comes after its request was answered, and that is thrown away."""
UNWANTED_S = 30.0
"""How long such a body may take. Closing at once would reset the connection, and the client might lose the
answer that it has not read yet."""
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
    """Ends a connection that does not finish its request's headers in time, or a body that nobody wants any
    more, or does not read its answer: uvicorn itself waits for ever, and each such connection would hold a
    descriptor, and what it was sent."""

    _deadline: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None
    _unwanted_left: int | None = None
    """Bytes that a body may still have whose request was answered before it had come; None where there is no
    such body."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_deadline()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._unwanted_left is not None:
            self._take_unwanted(len(data))
            return
        in_head = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        if not in_head:
            self._end_deadline()
        elif self._deadline is None:
            self._start_deadline()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._has_unwanted and not self.transport.is_closing():
            self._unset_keepalive_if_required()  # it is not idle; this deadline is the one that counts
            self._unwanted_left = MAX_UNWANTED_BYTES
            self._end_deadline()
            self._deadline = self.loop.call_later(UNWANTED_S, self.transport.abort)

    @property
    def _has_unwanted(self) -> bool:
        """Whether the request was answered and its body has not come to its end."""
        return self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY

    def _take_unwanted(self, n_bytes: int) -> None:
        """uvicorn has thrown them away. Behind the last one the connection is as after any other request."""
        assert self._unwanted_left is not None
        self._unwanted_left -= n_bytes
        if not self._has_unwanted:
            self._unwanted_left = None
            self._end_deadline()
            if self.conn.their_state is h11.IDLE:
                if self.conn.trailing_data[0]:
                    self._start_deadline()
                else:  # uvicorn arms it behind an answer only, and this one's is long gone
                    self.timeout_keep_alive_task = self.loop.call_later(
                        self.timeout_keep_alive, self.timeout_keep_alive_handler
                    )
        elif self._unwanted_left < 0:
            self.transport.abort()

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
