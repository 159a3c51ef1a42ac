"""`gguf-worker serve`: supervised workers in the foreground, until a signal or a worker that is given up."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import anyio

from gguf_worker import Recipe, RestartPolicy, ShardSpec, WorkerSettings
from gguf_worker._tasks import plain_task_group
from gguf_worker.cli.division import divide, look_at_model
from gguf_worker.cli.errors import EXIT_FAILED, CommandError, describe
from gguf_worker.cli.layers import Range
from gguf_worker.cli.live import live_view
from gguf_worker.cli.options import HostOptions
from gguf_worker.errors import GgufWorkerError, GivenUp
from gguf_worker.logs import LogWriter, log_event, logging_to
from gguf_worker.serving.address import Address, AddressError, bound_address, is_loopback, listen
from gguf_worker.serving.app import status_app
from gguf_worker.serving.notify import Notifier, announced
from gguf_worker.serving.server import http_server
from gguf_worker.serving.service import Service
from gguf_worker.serving.signals import StopRequest, stop_signals

EXIT_GIVEN_UP = 69
"""sysexits' EX_UNAVAILABLE: the workers died too often, which another start may or may not mend."""

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
    restart: RestartPolicy
    drain_timeout_s: float
    as_json: bool
    """Whether log lines are JSON."""
    log_level: int

    @property
    def is_live(self) -> bool:
        """Whether there is somebody to draw a view for."""
        return sys.stderr.isatty() and not self.as_json


def parse_address(text: str) -> Address:
    """Reads the value of --http. Raises CommandError."""
    try:
        return Address.parse(text)
    except AddressError as error:
        raise CommandError(f"--http: {error}") from error


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
    return EXIT_GIVEN_UP if isinstance(error, GivenUp) else EXIT_FAILED


async def _serve_until_stopped(config: ServeConfig, stop: StopRequest, writer: LogWriter) -> None:
    """HTTP and the service manager are answered from the begin to the end; the workers live in between."""
    service = Service(config.model)
    async with AsyncExitStack() as stack:
        if config.http is not None:
            await stack.enter_async_context(http_server(status_app(service), _listen(config.http)))
        await stack.enter_async_context(announced(service, Notifier.take()))
        log_event(log, logging.INFO, "starting", f"looking at {config.model}", model=config.model)
        specs = await unless_stopped(stop, lambda: shards_of(config))
        if specs is None:
            return
        if config.is_live:
            await stack.enter_async_context(live_view(service, writer))
        settings = WorkerSettings(restart=config.restart)
        await service.run(specs, settings=settings, stop=stop, drain_timeout_s=config.drain_timeout_s)


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


async def unless_stopped(
    stop: StopRequest, look: Callable[[], Awaitable[Sequence[ShardSpec]]]
) -> Sequence[ShardSpec] | None:
    """What it found; None where a stop was asked for before."""
    found = None
    async with plain_task_group() as tasks:

        async def give_up() -> None:
            await stop.asked.wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(give_up)
        found = await look()
        tasks.cancel_scope.cancel()
    return found


async def shards_of(config: ServeConfig) -> list[ShardSpec]:
    """One specification per shard, each with the digest of the file that was looked at."""
    found = await look_at_model(config.model, config.host, silent=not config.is_live)
    layers = config.layers or found.slice or (0, found.n_layer)
    whole = config.host.spec(config.model, config.recipe, artifact=found.artifact)
    return await divide(whole, found, layers, n_shards=config.n_shards)
