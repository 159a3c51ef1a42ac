"""Nodes in this process, over a tracker in memory; every test must leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest

from gguf_worker.node.grpc import GrpcDialer
from gguf_worker.node.transport import TransportClosed
from gguf_worker.testing import Baseline


@pytest.fixture(scope="session", autouse=True)
def _grpc_is_initialised() -> None:
    """gRPC starts a thread for the whole process the first time it is used; no test shall be blamed."""

    async def once() -> None:
        async with GrpcDialer() as dialer:
            with pytest.raises(TransportClosed):
                await dialer.connect("127.0.0.1:1", timeout_s=5.0)

    anyio.run(once)


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with Baseline():
        yield
