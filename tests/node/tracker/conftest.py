"""A NATS server with JetStream; whoever starts one leaves nothing behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from gguf_worker.testing import Baseline
from gguf_worker.testing.nats import NatsServer


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with Baseline():
        yield


@pytest.fixture
async def server() -> AsyncIterator[NatsServer]:
    """Runs while the test does."""
    async with NatsServer(jetstream=True) as running:
        yield running
