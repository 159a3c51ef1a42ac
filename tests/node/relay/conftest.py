"""A NATS server, connections to it, and a node that echoes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gguf_worker.node.nats import Nats, NatsOptions, connect_nats
from gguf_worker.testing.nats import NatsServer


@pytest.fixture
async def server() -> AsyncIterator[NatsServer]:
    async with NatsServer() as server:
        yield server


def options(server: NatsServer) -> NatsOptions:
    """For a server of the tests: comes back quickly."""
    return NatsOptions(servers=(server.url,), backoff_s=(0.01, 0.1))


@pytest.fixture
async def node_nats(server: NatsServer) -> AsyncIterator[Nats]:
    """The node's connection."""
    async with connect_nats(options(server)) as nats:
        yield nats


@pytest.fixture
async def client_nats(server: NatsServer) -> AsyncIterator[Nats]:
    """The client's connection."""
    async with connect_nats(options(server)) as nats:
        yield nats
