"""The status page of a gateway over nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from gguf_worker.gateway.app import gateway_app
from gguf_worker.gateway.gateway import open_gateway
from gguf_worker.gateway.mesh_catalogue import MeshModels
from gguf_worker.gateway.model import ModelSettings
from gguf_worker.gateway.shown import GatewayShown
from gguf_worker.serving.address import Address, bound_address, listen
from gguf_worker.serving.server import http_server
from gguf_worker.status_page.board import Board
from gguf_worker.status_page.pages import page_routes
from meshes import MeshHere, mesh_here
from page.conftest import MISSING, OpenPage

expect = pytest.importorskip("playwright.sync_api", reason=MISSING).expect
expect.set_options(timeout=30_000)


@asynccontextmanager
async def page_of_mesh(folder: Path) -> AsyncIterator[tuple[MeshHere, Address]]:
    """Three nodes, and a gateway over them with its page."""
    async with mesh_here(folder) as here:
        catalogue = MeshModels(here.mesh, ModelSettings())
        async with open_gateway(catalogue) as gateway:
            board = Board(GatewayShown(gateway, catalogue.routes_shown))
            sockets = listen(Address("127.0.0.1", 0))
            app = gateway_app(gateway, page_routes(board, gateway.account_of))
            async with http_server(app, sockets), board.running():
                yield here, bound_address(sockets[0])


def test_nodes_are_shown_and_the_death_of_a_worker(tmp_path: Path, open_page: OpenPage) -> None:
    """By name and state; what the gateway cannot know, the ends of processes, is not shown."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(page_of_mesh(tmp_path)) as (here, address),
    ):
        page = open_page((address.host, address.port), width=900)
        stages = page.locator(".stage")
        expect(stages).to_have_count(3)
        expect(stages.nth(1)).to_contain_text("node middle")
        expect(stages.nth(1).locator(".state")).to_have_text("ready")
        expect(page.locator("#ends-section")).to_be_hidden()
        portal.call(here.kill_worker, "middle")
        expect(stages.nth(1).locator("dt:text('Restarts') + dd")).to_have_text("1")
        expect(page.locator("#now > div", has_text="Restarts").locator("dd")).to_have_text("1")
        expect(stages.nth(1).locator(".state")).to_have_text("ready")
