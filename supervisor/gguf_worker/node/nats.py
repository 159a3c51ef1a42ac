"""One connection to NATS for everything in a node that uses it: relay, tracker, receipts.

The first connection is bounded; after it the connection comes back by itself for as long as it is open,
whatever ended it. Nothing is lost silently: whoever needs to know is told of every disconnection.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
from nats import errors
from nats.aio.client import PING_PROTO, Client, Server
from nats.js import JetStreamContext
from nats.protocol.parser import PERMISSIONS_ERR

from gguf_worker.errors import GgufWorkerError
from gguf_worker.logs import log_event

logger = logging.getLogger(__name__)

DEFAULT_URL = "nats://127.0.0.1:4222"
FIRST_RETRY_S = 0.1
"""Between attempts to connect for the first time."""
STALLED_FLUSH_S = 5.0
"""How long a publication waits where too much is queued already."""
CLOSE_S = 2.0
"""How long closing may take, over and above what is still to be written."""


class NatsError(GgufWorkerError):
    """Raised when NATS does not do what it was asked for. `code` says what: `nats_unreachable`,
    `nats_unauthorized`, `nats_tls`, `nats_options`, or `nats` for everything else."""

    default_code = "nats"


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsOptions:
    """How a node reaches its NATS."""

    servers: tuple[str, ...] = field(default=(DEFAULT_URL,), repr=False)
    """URLs of one cluster: nats://HOST:PORT, or tls:// where TLS is wanted. What stands before an @ in a URL
    is a token or user:password, and is never logged."""
    name: str = "gguf-worker"
    """Of this client, in the server's monitoring."""
    token: str | None = field(default=None, repr=False)
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    credentials: Path | None = None
    """File with a JWT and its seed, as NATS's tools write it; needs the package `nkeys`."""
    tls_ca: Path | None = None
    """Certificates that the server's must be signed by; the system's where it is None."""
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    connect_timeout_s: float = 5.0
    """For the first connection, and for every attempt after it."""
    ping_interval_s: float = 2.0
    """A server that left two pings unanswered is given up; sooner than relay links give up each other."""
    backoff_s: tuple[float, float] = (0.05, 2.0)
    """Longest wait before the second attempt to come back, and before any; the first one does not wait."""
    close_timeout_s: float = 5.0
    """How long the end waits until everything that was published is written."""
    pending_bytes: int = 64 * 1024 * 1024
    """Published and not written yet, before a publication waits; and the most that is kept while there is no
    connection."""


class Nats:
    """An open connection. Everything on it belongs to one event loop."""

    def __init__(self, options: NatsOptions) -> None:
        self._options = options
        self._attempts = 0
        self._reported: set[str] = set()
        self._watchers: set[Callable[[bool], None]] = set()
        self._connected = anyio.Event()
        self._disconnected = anyio.Event()
        self._disconnected.set()
        self.client = _Client()
        """The library's client, for whatever this class does not do."""
        self.connections = 0
        """Times that it was connected; rises with every reconnection."""

    def __repr__(self) -> str:
        state = "connected" if self.is_connected else "not connected"
        return f"<Nats {self.url} {state} connections={self.connections}>"

    @property
    def url(self) -> str:
        """Where it is connected, or was last or shall be, without secrets."""
        where = self.client.connected_url
        return safe_url(where.geturl() if where is not None else self._options.servers[0])

    @property
    def is_connected(self) -> bool:
        """Whether what is published now is written now."""
        return self.client.is_connected

    @property
    def max_payload(self) -> int:
        """Most bytes in one message, as the server says; another one may say something else after a
        reconnection."""
        return self.client.max_payload

    @cached_property
    def jetstream(self) -> JetStreamContext:
        """The server's streams and stores."""
        return self.client.jetstream()

    async def wait_connected(self) -> None:
        """Returns when there is a connection."""
        await self._connected.wait()

    async def wait_disconnected(self) -> None:
        """Returns when there is none."""
        await self._disconnected.wait()

    @contextmanager
    def watching(self, watcher: Callable[[bool], None]) -> Iterator[None]:
        """Calls `watcher` with whether there is a connection, whenever that changes; it must not raise."""
        self._watchers.add(watcher)
        try:
            yield
        finally:
            self._watchers.discard(watcher)

    async def flush(self, timeout_s: float) -> None:
        """Returns when the server has everything that was published. Raises NatsError."""
        with nats_errors(f"{self.url} did not confirm what was sent"), anyio.fail_after(timeout_s):
            await self.client.flush(timeout=timeout_s)  # type: ignore[arg-type]

    # ---- the life of the connection -------------------------------------------------------------

    async def _open(self) -> None:
        """Raises NatsError: at once where the server refuses us, else when the time is over."""
        timeout_s = self._options.connect_timeout_s
        try:
            with anyio.move_on_after(timeout_s):
                await self.client.connect(**self._arguments())
                self._has_connected()
                return
        except (errors.Error, OSError, ValueError) as error:  # options that the library does not like
            text = f"{self.url}: {_words(error)} (write nats://HOST:PORT, and check the credentials)"
            raise NatsError(text, code="nats_options") from error
        raise NatsError(
            f"no NATS server answers at {self.url} within {timeout_s:g} s; start one or correct the URL",
            code="nats_unreachable",
            retryable=True,
            fields={"url": self.url},
        )

    async def _close(self) -> None:
        """Writes what was published and closes, bounded and whatever the state is."""
        with anyio.move_on_after(self._options.close_timeout_s, shield=True):
            if self.is_connected:
                with suppress(errors.Error):  # it is being closed in any case
                    await self.client.flush()
        client = self.client
        if client.is_connected or client.is_connecting or client.is_reconnecting:
            with anyio.move_on_after(CLOSE_S, shield=True):
                await client.close()
            client.abort()

    def _arguments(self) -> dict[str, Any]:
        options = self._options
        arguments: dict[str, Any] = {
            "servers": list(options.servers),
            "name": options.name,
            "error_cb": self._on_error,
            "disconnected_cb": self._on_disconnected,
            "reconnected_cb": self._on_reconnected,
            "reconnect_to_server_handler": self._next_server,
            "connect_timeout": options.connect_timeout_s,
            "reconnect_time_wait": FIRST_RETRY_S,
            "max_reconnect_attempts": -1,
            "ping_interval": options.ping_interval_s,
            "pending_size": options.pending_bytes,
            "flush_timeout": STALLED_FLUSH_S,
            "tls": _tls_context(options),
        }
        arguments |= {"token": options.token, "user": options.user, "password": options.password}
        if options.credentials is not None:
            arguments["user_credentials"] = _credentials(options.credentials)
        return arguments

    def _next_server(self, servers: list[Server], _: dict[str, Any]) -> tuple[Server, float]:
        """Each in its turn, after a random wait that grows, so that not all nodes come back in one moment."""
        attempt, self._attempts = self._attempts, self._attempts + 1
        if attempt == 0:
            return servers[0], 0.0
        first, most = self._options.backoff_s
        longest = min(most, first * 2 ** min(attempt - 1, 16))
        return servers[attempt % len(servers)], random.uniform(first / 2, longest)

    def _has_connected(self) -> None:
        self.connections += 1
        self._attempts = 0
        self._reported.clear()
        self._disconnected = anyio.Event()
        self._connected.set()
        self._log(logging.INFO, "nats_connected", "connected", connections=self.connections)
        self._tell(True)

    async def _on_reconnected(self) -> None:
        self._has_connected()

    async def _on_disconnected(self) -> None:
        if self._connected.is_set():
            self._connected = anyio.Event()
            self._disconnected.set()
            closed = self.client.is_closed
            self._log(logging.INFO if closed else logging.WARNING, "nats_disconnected", "not connected")
            self._tell(False)

    async def _on_error(self, error: Exception) -> None:
        if not self.connections:
            self._refuse(error)
        elif isinstance(error, errors.SlowConsumerError):
            self._log(
                logging.WARNING,
                "nats_slow_consumer",
                f"messages on {error.subject} were dropped",
                subject=error.subject,
            )
        elif (words := _words(error)) not in self._reported:  # once for each disconnection
            self._reported.add(words)
            self._log(logging.WARNING, "nats_error", words, error=words)

    def _refuse(self, error: Exception) -> None:
        """Raises NatsError for what will be the same at the next attempt, before the first connection."""
        words = _words(error)
        if "uthorization" in words or "uthentication" in words:
            remedy = "check the token, the user or the credentials"
            code = "nats_unauthorized"
        elif isinstance(error, ssl.SSLError):
            remedy = "check the CA and the certificates"
            code = "nats_tls"
        else:
            return
        raise NatsError(f"{self.url}: {words}; {remedy}", code=code, fields={"url": self.url})

    def _tell(self, connected: bool) -> None:
        for watcher in tuple(self._watchers):
            watcher(connected)

    def _log(self, level: int, event: str, message: str, **fields: object) -> None:
        log_event(logger, level, event, f"NATS {self.url}: {message}", url=self.url, **fields)


class _Client(Client):
    """The library's client, without three of its habits."""

    def abort(self) -> None:
        """Ends the socket, without what it has not taken yet."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    async def _attempt_reconnect(self) -> None:
        """The library waits until everything is written to the connection that it gives up, which is for ever
        where that is why it gives it up."""
        self.abort()
        await super()._attempt_reconnect()

    async def _process_err(self, err_msg: str) -> None:
        """The library closes its connection for ever when the server complains of anything but permissions: a
        message that became too large for a restarted server, credentials that ran out. Here it comes back."""
        if PERMISSIONS_ERR in err_msg:
            await super()._process_err(err_msg)
            return
        error = errors.Error(f"nats: {err_msg}")
        await self._error_cb(error)
        await self._process_op_err(error)

    async def _send_ping(self, future: asyncio.Future[bool] | None = None) -> None:
        """The library's ping overtakes what waits to be written, so that its answer says nothing of it."""
        self._pongs.append(asyncio.Future() if future is None else future)
        await self._send_command(PING_PROTO)
        await self._flush_pending()


@asynccontextmanager
async def connect_nats(options: NatsOptions) -> AsyncIterator[Nats]:
    """A connection that is open inside. Raises NatsError where the first one fails."""
    nats = Nats(options)
    try:
        await nats._open()
        yield nats
    finally:
        await nats._close()


@contextmanager
def nats_errors(what: str) -> Iterator[None]:
    """The library's errors become NatsError, in words that begin with `what`."""
    try:
        yield
    except (errors.Error, OSError, TimeoutError) as error:
        raise NatsError(f"{what}: {_words(error)}", retryable=True) from error


def safe_url(url: str) -> str:
    """The URL without what stands before its last @, whatever characters a password has."""
    scheme, _, rest = url.partition("://") if "://" in url else ("nats", "", url)
    return f"{scheme}://{rest.rpartition('@')[2]}"


def _words(error: Exception) -> str:
    words = str(error).removeprefix("nats: ").strip("'\"")
    return words or type(error).__name__


def _tls_context(options: NatsOptions) -> ssl.SSLContext | None:
    """None is the system's trust, where the server wants TLS."""
    files = (options.tls_ca, options.tls_certificate, options.tls_key)
    if files == (None, None, None):
        return None
    try:
        context = ssl.create_default_context(cafile=options.tls_ca)
        if options.tls_certificate is not None:
            context.load_cert_chain(options.tls_certificate, options.tls_key)
    except OSError as error:  # ssl.SSLError too
        named = ", ".join(str(file) for file in files if file is not None)
        raise NatsError(f"TLS files for NATS ({named}): {_words(error)}", code="nats_tls") from error
    return context


def _credentials(path: Path) -> str:
    if not path.is_file():
        raise NatsError(f"there is no NATS credentials file {str(path)!r}", code="nats_options")
    if find_spec("nkeys") is None:
        raise NatsError(
            "credentials files need the package nkeys; run 'pip install nkeys'", code="nats_options"
        )
    return str(path)
