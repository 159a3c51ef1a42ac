"""How nodes are reached: directly where that goes, else through the relay."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import anyio

from gguf_worker.logs import log_event
from gguf_worker.node.transport import Dialer, Transport, TransportClosed
from gguf_worker_v1 import registration_pb2

log = logging.getLogger(__name__)

GRPC = "grpc"
NATS = "nats"
"""Kinds of endpoints."""
GRPC_TLS = "grpc with TLS"
"""A way of its own for who dials."""

_NEXT_WAY = ("unreachable", "lost", "deadline")
"""What another endpoint of the same node may mend; a refusal would be the same there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSettings:
    """How long is waited, in seconds."""

    connect_timeout_s: float = 3.0
    """For one endpoint."""
    avoid_s: float = 30.0
    """How long an endpoint that could not be reached is tried last."""


def way_of(endpoint: registration_pb2.Endpoint) -> str:
    """How an endpoint is dialled."""
    return GRPC_TLS if endpoint.kind == GRPC and endpoint.tls else endpoint.kind


class Paths:
    """Opens transports to nodes, whatever kinds of endpoints they have.

    `dialers` says which ways this side can go (GRPC_TLS, GRPC, NATS), those before others that are named
    first.
    """

    def __init__(
        self,
        dialers: Mapping[str, Dialer],
        settings: PathSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dialers = dict(dialers)
        self._settings = settings or PathSettings()
        self._clock = clock
        self._avoided: dict[tuple[str, str], float] = {}
        self.taken: dict[str, registration_pb2.Endpoint] = {}
        """By which endpoint each node was reached last."""

    def usable(self, endpoints: Sequence[registration_pb2.Endpoint]) -> list[registration_pb2.Endpoint]:
        """Those that this side can try, the best first."""
        ways = list(self._dialers)
        known = [endpoint for endpoint in endpoints if way_of(endpoint) in ways]
        return sorted(known, key=lambda endpoint: (self._is_avoided(endpoint), ways.index(way_of(endpoint))))

    async def connect(self, node: str, endpoints: Sequence[registration_pb2.Endpoint]) -> Transport:
        """A transport to the node. Raises TransportClosed: `unreachable` where no endpoint could be reached,
        else the refusal."""
        reasons = []
        for endpoint in self.usable(endpoints):
            try:
                transport = await self._dial(endpoint)
            except TransportClosed as error:
                if error.code not in _NEXT_WAY:
                    raise
                reasons.append(f"{endpoint.kind} {endpoint.address}: {error.message}")
                self._avoid(node, endpoint, error)
            else:
                self._avoided.pop((endpoint.kind, endpoint.address), None)
                self.taken[node] = endpoint
                return transport
        raise TransportClosed(
            f"{node} cannot be reached: {'; '.join(reasons) or self._no_way(endpoints)}",
            code="unreachable",
            retryable=True,
            fields={"node": node},
        )

    async def latency_s(self, node: str, endpoints: Sequence[registration_pb2.Endpoint]) -> float:
        """Seconds that it takes to open a stream to the node by the way that `connect` takes, once its
        connection stands. Raises TransportClosed."""
        await (await self.connect(node, endpoints)).aclose()
        started = self._clock()
        transport = await self.connect(node, endpoints)
        elapsed_s = self._clock() - started
        await transport.aclose()
        return elapsed_s

    async def _dial(self, endpoint: registration_pb2.Endpoint) -> Transport:
        timeout_s = self._settings.connect_timeout_s
        with anyio.move_on_after(timeout_s):
            return await self._dialers[way_of(endpoint)].connect(endpoint.address, timeout_s=timeout_s)
        raise TransportClosed(f"no answer within {timeout_s:g} s", code="unreachable", retryable=True)

    def _avoid(self, node: str, endpoint: registration_pb2.Endpoint, error: TransportClosed) -> None:
        if not self._is_avoided(endpoint):
            text = f"{node} cannot be reached by {endpoint.kind} at {endpoint.address}: {error.message}"
            log_event(log, logging.WARNING, "endpoint_unreachable", text, node=node, code=error.code)
        now = self._clock()
        self._avoided = {way: until for way, until in self._avoided.items() if now < until}
        self._avoided[endpoint.kind, endpoint.address] = now + self._settings.avoid_s

    def _is_avoided(self, endpoint: registration_pb2.Endpoint) -> bool:
        return self._clock() < self._avoided.get((endpoint.kind, endpoint.address), 0.0)

    def _no_way(self, endpoints: Sequence[registration_pb2.Endpoint]) -> str:
        ways = ", ".join(sorted({way_of(endpoint) for endpoint in endpoints})) or "nothing"
        return f"it is reached by {ways}, and this side goes by {', '.join(self._dialers) or 'nothing'}"
