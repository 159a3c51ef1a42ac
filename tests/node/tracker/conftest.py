"""A NATS server with JetStream; whoever starts one leaves nothing behind."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gguf_worker.testing.nats import NatsServer


@pytest.fixture
async def server() -> AsyncIterator[NatsServer]:
    """Runs while the test does."""
    async with NatsServer(jetstream=True) as running:
        yield running
