"""`gguf-worker serve`: supervised workers in the foreground, until a signal or a worker that is given up."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from gguf_worker import Recipe, RestartPolicy, ShardSpec, WorkerSettings
from gguf_worker._memory import keep_what_is_loaded
from gguf_worker.cli.division import divide, look_at_model
from gguf_worker.cli.errors import EXIT_FAILED, EXIT_USAGE, CommandError, describe
from gguf_worker.cli.gateway_options import ApiOptions
from gguf_worker.cli.layers import Range
from gguf_worker.cli.live import live_view
from gguf_worker.cli.node_options import NodeOptions
from gguf_worker.cli.options import HostOptions, TrackerOptions
from gguf_worker.errors import GgufWorkerError, GivenUp
from gguf_worker.logs import LogWriter, log_event, logging_to
from gguf_worker.serving.address import Address, bound_address, is_loopback, listen
from gguf_worker.serving.app import status_app
from gguf_worker.serving.notify import Notifier, announced
from gguf_worker.serving.server import http_server
from gguf_worker.serving.service import Service
from gguf_worker.serving.shown import ServiceShown
from gguf_worker.serving.signals import StopRequest, given_up_if_asked, stop_signals
from gguf_worker.status_page.board import Board
from gguf_worker.status_page.pages import page_routes

if TYPE_CHECKING:  # what a node or the API needs is imported when there is one
    from gguf_worker.cli.api import OpenApi, ServedApi
    from gguf_worker.cli.node import ServedNode

EXIT_GIVEN_UP = 69
"""sysexits' EX_UNAVAILABLE: the workers died too often, which another start may or may not mend."""

SUPERSEDED = "superseded"
"""The code of a node whose name another one took: started again it would take it back, and so on for ever."""

log = logging.getLogger("gguf_worker.serve")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    model: str
    layers: Range | None
    """None is all that the file holds."""
    n_shards: int
    recipe: Recipe
    host: HostOptions
    http: Address | None
    api: ServedApi | None
    """None: HTTP shows the status only."""
    restart: RestartPolicy
    compute_nice: int
    drain_timeout_s: float
    node: ServedNode | None
    """None: no part of a mesh."""
    as_json: bool
    """Whether log lines are JSON."""
    log_level: int

    @property
    def is_live(self) -> bool:
        """Whether there is somebody to draw a view for."""
        return sys.stderr.isatty() and not self.as_json


def served_node(
    options: NodeOptions, tracker: TrackerOptions, *, has_http: bool, drain_timeout_s: float
) -> ServedNode | None:
    """The node that is asked for; None where nothing asks for one. Raises CommandError, and GgufWorkerError
    for a name or file that does not do."""
    if not options.is_given and tracker.tracker is None:
        if options.certificate and not has_http:
            raise CommandError(
                "--certificate is for a node or for the API, and neither is asked for",
                remedy="give --listen, --relay or --http as well",
            )
        return None
    from gguf_worker.cli.node import ServedNode

    return ServedNode.of(options, tracker, drain_timeout_s=drain_timeout_s)


def served_api(
    options: ApiOptions, name: str, *, certificates: Sequence[Path], drain_timeout_s: float
) -> ServedApi:
    """The API of one model. Raises GgufWorkerError for a file of keys that does not do."""
    from gguf_worker.cli.api import ServedApi

    return ServedApi.of(options, name, certificates=certificates, drain_timeout_s=drain_timeout_s)


def serve(config: ServeConfig) -> int:
    """Serves until it is told to stop, and returns the exit status."""
    with logging_to(sys.stderr, as_json=config.as_json, level=config.log_level) as writer:
        return anyio.run(_serve, config, writer)


async def _serve(config: ServeConfig, writer: LogWriter) -> int:
    """The exit status; whatever is foreseen to go wrong is told in the log, in its format."""
    with stop_signals() as stop:
        try:
            await _serve_until_stopped(config, stop, writer)
        except (GgufWorkerError, CommandError, OSError) as error:
            code = error.code if isinstance(error, GgufWorkerError) else None
            log_event(log, logging.ERROR, "failed", describe(error) or str(error), code=code)
            return exit_status_of(error)
        if stop.urgent.is_set():
            assert stop.signal is not None
            return 128 + stop.signal
        log_event(log, logging.INFO, "stopped", "stopped")
        return 0


def exit_status_of(error: Exception) -> int:
    """What the process's end says about an error."""
    if isinstance(error, CommandError):
        return error.exit_status
    if isinstance(error, GgufWorkerError) and error.code == SUPERSEDED:
        return EXIT_USAGE
    return EXIT_GIVEN_UP if isinstance(error, GivenUp) else EXIT_FAILED


async def _serve_until_stopped(config: ServeConfig, stop: StopRequest, writer: LogWriter) -> None:
    """HTTP and the service manager are answered from the begin to the end; the workers live in between."""
    service = Service(config.model)
    async with AsyncExitStack() as stack:
        api = None
        if config.http is not None:
            sockets = _listen(config.http)
            api = await stack.enter_async_context(_api(config.api, sockets))
            board = Board(ServiceShown(service, None if api is None else api.gateway.figures.recent))
            app = status_app(service, page_routes(board)) if api is None else api.app(service, board)
            await stack.enter_async_context(http_server(app, sockets))
            await stack.enter_async_context(board.running())  # ends what pages read, before the server ends
        await stack.enter_async_context(announced(service, Notifier.take()))
        log_event(log, logging.INFO, "starting", f"looking at {config.model}", model=config.model)
        has_started = await stack.enter_async_context(given_up_if_asked(stop))
        specs = await shards_of(config)
        if config.is_live:
            await stack.enter_async_context(live_view(service, writer))
        settings = WorkerSettings(restart=config.restart, compute_nice=config.compute_nice)
        beside = await stack.enter_async_context(_beside(service, config.node, api))
        keep_what_is_loaded()
        has_started()  # from here on a stop is in good order
        await service.run(
            specs, settings=settings, stop=stop, drain_timeout_s=config.drain_timeout_s, beside=beside
        )


@asynccontextmanager
async def _api(api: ServedApi | None, sockets: Sequence[socket.socket]) -> AsyncIterator[OpenApi | None]:
    """The API, where these sockets may be asked for it."""
    if api is None or not api.may_listen_on(sockets):
        yield None
        return
    async with api.opened() as opened:
        yield opened


@asynccontextmanager
async def _beside(
    service: Service, node: ServedNode | None, api: OpenApi | None
) -> AsyncIterator[Callable[[], AbstractAsyncContextManager[object]]]:
    """What is open beside the shards: the API's model, and a node, whose surroundings stay until they have
    ended."""
    async with AsyncExitStack() as stack:
        opened: list[Callable[[], AbstractAsyncContextManager[object]]] = []
        if node is not None:
            from gguf_worker.cli.node import node_of_shards, surroundings

            around = await stack.enter_async_context(surroundings(node))
            opened.append(lambda: node_of_shards(service, node.config, around))
        if api is not None:
            opened.append(lambda: api.model_of(service))
        yield lambda: _all_of(opened)


@asynccontextmanager
async def _all_of(opened: Sequence[Callable[[], AbstractAsyncContextManager[object]]]) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for one in opened:
            await stack.enter_async_context(one())
        yield


def _listen(address: Address) -> list[socket.socket]:
    """Sockets for the status pages, which anybody who reaches them can read."""
    sockets = listen(address)
    for listener in sockets:
        bound = bound_address(listener)
        log_event(log, logging.INFO, "http_listening", f"status at http://{bound}", address=str(bound))
        if not is_loopback(bound):
            text = (
                f"{bound} can be reached from other machines: whoever reaches it can read this service's "
                "status, without a password and unencrypted (127.0.0.1 is for this machine only)"
            )
            log_event(log, logging.WARNING, "http_exposed", text, address=str(bound))
    return sockets


async def shards_of(config: ServeConfig) -> list[ShardSpec]:
    """One specification per shard, each with the digest of the file that was looked at."""
    found = await look_at_model(config.model, config.host, silent=not config.is_live)
    layers = config.layers or found.slice or (0, found.n_layer)
    whole = config.host.spec(config.model, config.recipe, artifact=found.artifact)
    return await divide(whole, found, layers, n_shards=config.n_shards)
