"""What one connection may take, and how soon a dead one is found; the same on both ends."""

from __future__ import annotations

from dataclasses import dataclass

from gguf_worker.protocol.limits import DEFAULT_MAX_FRAME_BYTES

FRAME_OVERHEAD_BYTES = 4096
"""Of what gRPC counts as a message: more than a frame, so that our own limit speaks first."""
MAX_METADATA_BYTES = 16 * 1024
HANDSHAKE_TIMEOUT_S = 10.0
"""For TLS and HTTP/2's first frames of a new connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcLimits:
    """Limits of a server or of a dialer."""

    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    """Largest frame, each way."""
    max_streams: int = 256
    """Streams and calls at once, of all clients together."""
    max_connections: int = 256
    idle_s: float = 60.0
    """A connection without a stream or a call is closed after this time."""
    keepalive_s: float = 5.0
    """A connection on which nothing came for so long is asked for a sign of life..."""
    keepalive_timeout_s: float = 4.0
    """...and is lost without one in this time."""
    call_timeout_s: float = 30.0
    """For Describe, Tokenize and Detokenize."""


def server_arguments(limits: GrpcLimits) -> list[tuple[str, int]]:
    """Of gRPC's server."""
    return [
        *_arguments_of_both(limits),
        ("grpc.so_reuseport", 0),  # else a second server could share a port that is taken
        ("grpc.max_concurrent_streams", limits.max_streams),
        ("grpc.max_allowed_incoming_connections", limits.max_connections),
        ("grpc.max_connection_idle_ms", _milliseconds(limits.idle_s)),
        ("grpc.server_handshake_timeout_ms", _milliseconds(HANDSHAKE_TIMEOUT_S)),
        # A client's own keepalive, whatever it is set to, must not look like an attack.
        ("grpc.http2.min_ping_interval_without_data_ms", 100),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 100),
    ]


def channel_arguments(limits: GrpcLimits, server_name: str) -> list[tuple[str, int | str]]:
    """Of gRPC's channels. `server_name` is what the node's certificate must be made out to; empty is the
    host."""
    return [
        *([("grpc.ssl_target_name_override", server_name)] if server_name else []),
        *_arguments_of_both(limits),
        (
            "grpc.use_local_subchannel_pool",
            1,
        ),  # else channels share connections, and pauses before the next try
        ("grpc.enable_http_proxy", 0),  # a node's address is meant as it is
        ("grpc.enable_retries", 0),  # a retried stream would be another session
    ]


def _arguments_of_both(limits: GrpcLimits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.max_frame_bytes + FRAME_OVERHEAD_BYTES),
        ("grpc.max_send_message_length", -1),  # our own check comes first
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.keepalive_time_ms", _milliseconds(limits.keepalive_s)),
        ("grpc.keepalive_timeout_ms", _milliseconds(limits.keepalive_timeout_s)),
        ("grpc.http2.ping_timeout_ms", _milliseconds(limits.keepalive_timeout_s)),  # else a minute
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _milliseconds(seconds: float) -> int:
    return max(1, round(1000 * seconds))
