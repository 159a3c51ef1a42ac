"""`gguf-worker gateway`: OpenAI's API over the nodes of a mesh."""

from __future__ import annotations

import logging
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass

import anyio

from gguf_worker._memory import keep_large_blocks, keep_what_is_loaded
from gguf_worker._tasks import plain_task_group
from gguf_worker.cli.api import listen_guarded
from gguf_worker.cli.errors import CommandError, describe
from gguf_worker.cli.node import paths_to_nodes, tracker_over
from gguf_worker.cli.node_options import PeerOptions
from gguf_worker.cli.serve import exit_status_of
from gguf_worker.errors import GgufWorkerError
from gguf_worker.gateway.app import gateway_app
from gguf_worker.gateway.gateway import Gateway, GatewaySettings, Keys, open_gateway
from gguf_worker.gateway.mesh_catalogue import MeshModels
from gguf_worker.gateway.model import ModelSettings
from gguf_worker.gateway.shown import GatewayShown
from gguf_worker.logs import log_event, logging_to
from gguf_worker.node.mesh import Mesh
from gguf_worker.node.nats import NatsOptions, connect_nats
from gguf_worker.serving.address import Address
from gguf_worker.serving.server import http_server
from gguf_worker.serving.signals import StopRequest, given_up_if_asked, stop_signals
from gguf_worker.status_page.board import Board
from gguf_worker.status_page.pages import page_routes
from gguf_worker.telemetry import exporting

log = logging.getLogger("gguf_worker.gateway")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    nats: NatsOptions
    peers: PeerOptions
    http: Address
    keys: Keys | None
    is_insecure: bool
    """Whether everybody may ask, from wherever."""
    model: ModelSettings
    gateway: GatewaySettings
    drain_timeout_s: float
    as_json: bool
    log_level: int


def gateway(config: GatewayConfig) -> int:
    """Serves until it is told to stop, and returns the exit status."""
    keep_large_blocks()
    with logging_to(sys.stderr, as_json=config.as_json, level=config.log_level), exporting():
        return anyio.run(_gateway, config)


async def _gateway(config: GatewayConfig) -> int:
    """The exit status; whatever is foreseen to go wrong is told in the log, in its format."""
    with stop_signals() as stop:
        try:
            await _serve(config, stop)
        except (GgufWorkerError, CommandError, OSError) as error:
            code = error.code if isinstance(error, GgufWorkerError) else None
            log_event(log, logging.ERROR, "failed", describe(error) or str(error), code=code)
            return exit_status_of(error)
        log_event(log, logging.INFO, "stopped", "stopped")
        return 0


async def _serve(config: GatewayConfig, stop: StopRequest) -> None:
    async with AsyncExitStack() as stack:
        has_started = await stack.enter_async_context(given_up_if_asked(stop))
        nats = await stack.enter_async_context(connect_nats(config.nats))
        tracker = await stack.enter_async_context(tracker_over(nats))
        paths = await stack.enter_async_context(paths_to_nodes(config.peers, nats))
        catalogue = MeshModels(Mesh(tracker, paths), config.model)
        opened = await stack.enter_async_context(
            open_gateway(catalogue, keys=config.keys, settings=config.gateway)
        )
        sockets = listen_guarded(config.http, keys=config.keys, is_insecure=config.is_insecure)
        board = Board(GatewayShown(opened, catalogue.routes_shown))
        app = gateway_app(opened, page_routes(board, opened.account_of))
        await stack.enter_async_context(http_server(app, sockets))
        await stack.enter_async_context(board.running())  # ends what pages read, before the server ends
        keep_what_is_loaded()
        has_started()
        await stop.asked.wait()
        text = f"asked to stop: up to {config.drain_timeout_s:g} s to finish"
        log_event(log, logging.INFO, "draining", text, timeout_s=config.drain_timeout_s)
        async with plain_task_group() as tasks:
            tasks.start_soon(_cut_off_where_urgent, opened, stop)
            await opened.drain(config.drain_timeout_s)
            tasks.cancel_scope.cancel()
        await opened.cut_off()


async def _cut_off_where_urgent(gateway: Gateway, stop: StopRequest) -> None:
    await stop.urgent.wait()
    await gateway.cut_off()
