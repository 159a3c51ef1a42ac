"""The standard health service: whether a node takes streams, for whoever balances or watches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import anyio
import grpc
import grpc.aio
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from gguf_worker.node.backend import ModelBackend

SERVICE: Final = "gguf_worker.v1.Node"
MAX_WATCHERS: Final = 64
"""Streams of Watch at once: they need no token, and must not take the place of those that do."""

_Context = grpc.aio.ServicerContext[HealthCheckRequest, HealthCheckResponse]


class NodeHealth(health_pb2_grpc.HealthServicer):
    """SERVING while a stage is ready and the node is not draining; for the node as a whole and for its
    service. A client that watches and does not read holds up nobody else."""

    def __init__(self, backends: Sequence[ModelBackend]) -> None:
        self._backends = tuple(backends)
        self._is_draining = False
        self._watchers = 0
        self._changed = anyio.Event()

    def drain(self) -> None:
        """The node takes no more streams."""
        self._is_draining = True
        self._tell()

    async def follow(self, backend: ModelBackend) -> None:
        """Tells whoever watches of each change of a backend, for ever."""
        while True:
            seen = backend.describe()
            self._tell()
            await backend.wait_for_change(seen)

    async def Check(self, request: HealthCheckRequest, context: _Context) -> HealthCheckResponse:
        """As the standard says."""
        status = self._now(request.service)
        if status == HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"ask for {SERVICE}, or for no service in particular"
            )
        return HealthCheckResponse(status=status)

    async def Watch(self, request: HealthCheckRequest, context: _Context) -> None:
        """As the standard says."""
        if self._watchers >= MAX_WATCHERS:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{MAX_WATCHERS} clients watch already; use Check, or try again later",
            )
        self._watchers += 1
        try:
            await self._watch(request.service, context)
        finally:
            self._watchers -= 1

    async def _watch(self, service: str, context: _Context) -> None:
        told: int | None = None
        while True:
            changed = self._changed  # before the look, so that nothing is missed
            if (status := self._now(service)) != told:
                await context.write(HealthCheckResponse(status=status))
                told = status
            await changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _now(self, service: str) -> Any:
        if service not in ("", SERVICE):
            return HealthCheckResponse.SERVICE_UNKNOWN
        ready = any(backend.describe().state == "ready" for backend in self._backends)
        serving = ready and not self._is_draining
        return HealthCheckResponse.SERVING if serving else HealthCheckResponse.NOT_SERVING
