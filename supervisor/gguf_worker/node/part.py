"""A node as the pages of its service show it."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from gguf_worker.node.nats import Nats
from gguf_worker.node.service import NodeService, Surroundings


class NodePart:
    """What a node does now."""

    def __init__(self, node: NodeService, around: Surroundings) -> None:
        self._node = node
        self._around = around

    def status(self) -> dict[str, object]:
        """For /v1/status."""
        node, around = self._node, self._around
        return {
            "name": node.config.name,
            "instance": node.instance,
            "draining": node.is_draining,
            "endpoints": [
                {"kind": endpoint.kind, "address": endpoint.address, "tls": endpoint.tls}
                for endpoint in node.endpoints
            ],
            "sessions": node.streams.open_sessions,
            "streams": node.streams.streams,
            "works": around.open_works(),
            "registered": node.is_registered,
            "lease_s": node.config.lease_s,
            "nats": None if around.nats is None else _nats(around.nats),
            "certificates": [certificate.id for certificate in around.certificates],
        }

    def collect(self) -> Iterator[Metric]:
        """For /metrics."""
        node, around = self._node, self._around
        about = {"node": node.config.name, "instance": node.instance}
        yield InfoMetricFamily("gguf_worker_node", "This node.", value=about)
        sessions = "Sessions that clients have open."
        yield GaugeMetricFamily("gguf_worker_node_sessions", sessions, node.streams.open_sessions)
        works = "Works that have no receipt yet."
        yield GaugeMetricFamily("gguf_worker_node_works", works, around.open_works())
        streams = "Streams of clients."
        yield CounterMetricFamily("gguf_worker_node_streams", streams, node.streams.streams)
        registered = "1 while the tracker was told within the lease, else 0."
        yield GaugeMetricFamily("gguf_worker_node_registered", registered, float(node.is_registered))
        if around.nats is not None:
            connected = "1 while there is a connection to NATS, else 0."
            yield GaugeMetricFamily(
                "gguf_worker_node_nats_connected", connected, float(around.nats.is_connected)
            )


def _nats(nats: Nats) -> dict[str, object]:
    return {"url": nats.url, "connected": nats.is_connected, "connections": nats.connections}
