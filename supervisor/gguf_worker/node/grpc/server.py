"""A node's gRPC server."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import anyio
import anyio.to_thread
import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from gguf_worker._tasks import plain_task_group
from gguf_worker.logs import log_event
from gguf_worker.node.backend import ModelBackend
from gguf_worker.node.grpc.calls import NodeCalls
from gguf_worker.node.grpc.doorkeeper import Doorkeeper
from gguf_worker.node.grpc.health import MAX_WATCHERS, SERVICE, NodeHealth
from gguf_worker.node.grpc.limits import server_arguments
from gguf_worker.node.grpc.security import GrpcOptions, addresses_to_listen_on, server_credentials
from gguf_worker.node.grpc.streams import Streams, StreamService
from gguf_worker.serving.address import Address, AddressError
from gguf_worker_v1 import registration_pb2

log = logging.getLogger(__name__)

MAX_CALLS: Final = 64
"""Describe, Tokenize, Detokenize and reflection at once."""


class GrpcServer:
    """A server that listens; `grpc_server` makes one."""

    def __init__(self, addresses: Sequence[str], *, tls: bool, streams: Streams, health: NodeHealth) -> None:
        self.addresses = tuple(addresses)
        """HOST:PORT, as they are bound."""
        self.tls = tls
        self._streams = streams
        self._health = health

    @property
    def open_streams(self) -> int:
        return self._streams.count

    async def drain(self) -> None:
        """Takes no more streams, and says so to whoever watches its health; those that are open go on."""
        self._streams.drain()
        self._health.drain()


@asynccontextmanager
async def grpc_server(
    service: StreamService,
    *,
    describe: Callable[[], registration_pb2.Registration],
    backends: Sequence[ModelBackend],
    options: GrpcOptions,
) -> AsyncIterator[GrpcServer]:
    """Serves a node while this is open. Leaving it refuses new streams, lets the open ones end by themselves
    for `options.grace_s`, and ends the rest with UNAVAILABLE.

    Raises, before anything listens, SecurityError, CertificateError and AddressError.
    """
    addresses = await anyio.to_thread.run_sync(addresses_to_listen_on, options)
    credentials = None if options.tls is None else server_credentials(options.tls)
    doorkeeper = Doorkeeper(options.tokens)
    streams = Streams(service, doorkeeper, options.limits)
    node_health = NodeHealth(backends)
    calls = NodeCalls(service.text, describe, options.limits.call_timeout_s)
    server = _server_of(streams, calls, node_health, doorkeeper, options)
    bound = [_bind(server, address, credentials) for address in addresses]
    handle = GrpcServer(bound, tls=credentials is not None, streams=streams, health=node_health)
    with anyio.CancelScope(shield=True):  # a server whose start was cancelled could not be stopped
        await server.start()
    try:
        _say_listening(handle)
        async with _followed(node_health, backends):
            yield handle
    finally:
        with anyio.CancelScope(shield=True):
            await handle.drain()
            await streams.finish(options.grace_s)
            await server.stop(None)


def _server_of(
    streams: Streams, calls: NodeCalls, node_health: NodeHealth, doorkeeper: Doorkeeper, options: GrpcOptions
) -> grpc.aio.Server:
    """A server with all services, that listens nowhere yet."""
    server = grpc.aio.server(
        interceptors=[doorkeeper],
        options=server_arguments(options.limits),
        maximum_concurrent_rpcs=options.limits.max_streams + MAX_WATCHERS + MAX_CALLS,
    )
    # Without (de)serialiser, so that frames stay bytes.
    stage: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(streams.handle)
    handlers = {**calls.handlers(), "Stage": stage}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
    health_pb2_grpc.add_HealthServicer_to_server(node_health, server)
    reflection.enable_server_reflection([SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
    return server


@asynccontextmanager
async def _followed(node_health: NodeHealth, backends: Sequence[ModelBackend]) -> AsyncIterator[None]:
    """What the health says follows the backends while this is open."""
    async with plain_task_group() as tasks:
        for backend in backends:
            tasks.start_soon(node_health.follow, backend, name="health of a stage")
        yield
        tasks.cancel_scope.cancel()


def _say_listening(server: GrpcServer) -> None:
    places = ", ".join(server.addresses)
    log_event(
        log, logging.INFO, "grpc_listening", f"gRPC listens on {places}", address=places, tls=server.tls
    )


def _bind(server: grpc.aio.Server, address: Address, credentials: grpc.ServerCredentials | None) -> str:
    """Adds an address; where it listens then. Raises AddressError."""
    try:
        if credentials is None:
            port = server.add_insecure_port(str(address))
        else:
            port = server.add_secure_port(str(address), credentials)
    except RuntimeError as error:
        raise AddressError(f"cannot listen on {address}: {error}") from error
    return str(Address(address.host, port))
