"""Stage streams and a node's other calls over gRPC."""

import os

# gRPC reads it when it is imported; by default each failed handshake is a line on stderr.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from gguf_worker.node.grpc.certificates import CertificateError
from gguf_worker.node.grpc.dialer import GrpcDialer
from gguf_worker.node.grpc.limits import GrpcLimits
from gguf_worker.node.grpc.security import (
    ClientTls,
    GrpcClientOptions,
    GrpcOptions,
    SecurityError,
    ServerTls,
)
from gguf_worker.node.grpc.server import GrpcServer, grpc_server
from gguf_worker.node.grpc.tokens import TokenError, Tokens, read_token

__all__ = [
    "CertificateError",
    "ClientTls",
    "GrpcClientOptions",
    "GrpcDialer",
    "GrpcLimits",
    "GrpcOptions",
    "GrpcServer",
    "SecurityError",
    "ServerTls",
    "TokenError",
    "Tokens",
    "grpc_server",
    "read_token",
]
