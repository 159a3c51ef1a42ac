"""The standard health service: whether a node takes streams, for whoever balances or watches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import grpc
import grpc.aio
from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from gguf_worker.node.backend import ModelBackend

SERVICE: Final = "gguf_worker.v1.Node"
MAX_WATCHERS: Final = 64
"""Streams of Watch at once: they need no token, and must not take the place of those that do."""

_Context = grpc.aio.ServicerContext[HealthCheckRequest, HealthCheckResponse]


class NodeHealth(health.aio.HealthServicer):
    """SERVING while a stage is ready and the node is not draining; for the node as a whole and for its
    service."""

    def __init__(self, backends: Sequence[ModelBackend]) -> None:
        super().__init__()
        self._backends = tuple(backends)
        self._is_draining = False
        self._watchers = 0

    def drain(self) -> None:
        """The node takes no more streams; `publish` tells it."""
        self._is_draining = True

    async def follow(self, backend: ModelBackend) -> None:
        """Publishes what each change of a backend makes of the node, for ever."""
        while True:
            published = await self.publish()
            if published == self._now():  # nothing is awaited between this look and the backend's own
                await backend.wait_for_change()

    async def publish(self) -> int:
        """Tells whoever watches how the node is now, and gives that."""
        status = self._now()
        for name in ("", SERVICE):
            await self.set(name, status)
        return status

    async def Watch(self, request: HealthCheckRequest, context: _Context) -> None:
        """As the standard says."""
        if self._watchers >= MAX_WATCHERS:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{MAX_WATCHERS} clients watch already; use Check, or try again later",
            )
        self._watchers += 1
        try:
            await super().Watch(request, context)
        finally:
            self._watchers -= 1

    def _now(self) -> int:
        ready = any(backend.describe().state == "ready" for backend in self._backends)
        serving = ready and not self._is_draining
        return HealthCheckResponse.SERVING if serving else HealthCheckResponse.NOT_SERVING
