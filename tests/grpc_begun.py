"""gRPC opens descriptors and starts threads for the whole process the first time it is used."""

from __future__ import annotations

import anyio
import pytest

from gguf_worker.node.grpc import GrpcDialer
from gguf_worker.node.transport import TransportClosed


def begin_grpc() -> None:
    """Uses it once, so that no test is blamed for what it keeps."""

    async def once() -> None:
        async with GrpcDialer() as dialer:
            with pytest.raises(TransportClosed):
                await dialer.connect("127.0.0.1:1", timeout_s=5.0)

    anyio.run(once)
