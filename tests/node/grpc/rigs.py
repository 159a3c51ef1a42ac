"""Nodes over gRPC without a model: a service that echoes frames, and a backend that only has a state."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import trustme

from gguf_worker.errors import GgufWorkerError, RequestError
from gguf_worker.node.backend import ModelBackend
from gguf_worker.node.grpc import (
    ClientTls,
    GrpcClientOptions,
    GrpcDialer,
    GrpcOptions,
    GrpcServer,
    ServerTls,
    grpc_server,
)
from gguf_worker.node.transport import Transport, TransportClosed
from gguf_worker_v1 import common_pb2, registration_pb2, stage_pb2

TIMEOUT_S = 10.0
"""For what a test waits for, and gets long before."""
TOKEN = "correct-horse-battery-staple"


class EchoText:
    """Tokens are bytes."""

    async def tokenize(self, request: stage_pb2.Tokenize) -> stage_pb2.Tokenized:
        if request.artifact == "unknown":
            raise RequestError(
                "no stage here has the vocabulary of unknown",
                code="not_owned",
                fields={"artifact": "unknown"},
            )
        if request.artifact == "slow":
            await anyio.sleep_forever()
        return stage_pb2.Tokenized(tokens=list(request.text))

    async def detokenize(self, request: stage_pb2.Detokenize) -> stage_pb2.Detokenized:
        return stage_pb2.Detokenized(text=bytes(request.tokens))


class EchoService:
    """Sends every frame back; `error CODE` ends the stream with an error of that code, after a last frame."""

    def __init__(self) -> None:
        self.text = EchoText()
        self.accounts: list[str] = []
        self.ends: list[str] = []
        """The code of each stream that ended."""
        self.ended = anyio.Event()
        self.received = 0

    async def serve(self, transport: Transport, *, account: str = "") -> None:
        self.accounts.append(account)
        try:
            while True:
                await self.answer(transport, await transport.receive())
                self.received += 1
        except TransportClosed as error:
            self.ends.append(error.code)
            self.ended.set()

    async def answer(self, transport: Transport, frame: bytes) -> None:
        """What one frame leads to."""
        if frame.startswith(b"error "):
            await transport.send(b"the last frame")
            code = frame[6:].decode()
            await transport.aclose(GgufWorkerError(f"asked for {code}", code=code, fields={"why": "a test"}))
        elif frame == b"defect":
            raise ZeroDivisionError
        else:
            await transport.send(frame)


class StateBackend:
    """A stage that has a state and nothing else."""

    def __init__(self, state: str = "ready") -> None:
        self.state = state
        self._changed = anyio.Event()

    def become(self, state: str) -> None:
        self.state = state
        self._changed.set()
        self._changed = anyio.Event()

    def describe(self) -> common_pb2.Stage:
        return common_pb2.Stage(state=self.state)

    async def wait_for_change(self, seen: common_pb2.Stage) -> None:
        while self.state == seen.state:
            await self._changed.wait()


@dataclass
class Node:
    """A node that runs, and how to dial it."""

    server: GrpcServer
    service: Any
    dialer: GrpcDialer
    backends: Sequence[Any]

    @property
    def address(self) -> str:
        return self.server.addresses[0]

    async def connect(self) -> Transport:
        return await self.dialer.connect(self.address, timeout_s=TIMEOUT_S)


@asynccontextmanager
async def node(
    service: Any = None,
    options: GrpcOptions | None = None,
    client: GrpcClientOptions | None = None,
    backends: Sequence[Any] | None = None,
) -> AsyncIterator[Node]:
    """A node on loopback and a dialer to it. It gives streams no time to end by themselves."""
    service = EchoService() if service is None else service
    backends = [StateBackend()] if backends is None else backends
    used: Sequence[ModelBackend] = backends

    def describe() -> registration_pb2.Registration:
        return registration_pb2.Registration(node="echo", stages=[backend.describe() for backend in backends])

    async with (
        grpc_server(
            service, describe=describe, backends=used, options=options or GrpcOptions(grace_s=0.0)
        ) as server,
        GrpcDialer(client) as dialer,
    ):
        yield Node(server, service, dialer, backends)


async def echoed(transport: Transport, frame: bytes = b"hello") -> bool:
    """Whether a stream works."""
    with anyio.fail_after(TIMEOUT_S):
        await transport.send(frame)
        return await transport.receive() == frame


async def ended(transport: Transport) -> TransportClosed:
    """Why a stream ends."""
    with anyio.fail_after(TIMEOUT_S):
        try:
            while True:
                await transport.receive()
        except TransportClosed as error:
            return error


@dataclass
class Authority:
    """Issues certificates into a folder."""

    folder: Path
    ca: trustme.CA = field(default_factory=trustme.CA)

    @property
    def certificate(self) -> Path:
        path = self.folder / "ca.pem"
        self.ca.cert_pem.write_to_path(str(path))
        return path

    def issue(
        self, name: str, *hosts: str, expired: bool = False, into: str | None = None
    ) -> tuple[Path, Path]:
        """Certificate and key of a host, valid or not any more."""
        issued = self.ca.issue_cert(
            *(hosts or ("127.0.0.1", "localhost")),
            common_name=name,
            not_after=datetime(2001, 1, 2, tzinfo=UTC) if expired else None,
        )
        chain, key = self.folder / f"{into or name}.pem", self.folder / f"{into or name}.key"
        chain.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(key))
        return chain, key

    def server(self, name: str = "node", *, mutual: bool = False, expired: bool = False) -> ServerTls:
        certificate, key = self.issue(name, expired=expired)
        return ServerTls(certificate=certificate, key=key, client_ca=self.certificate if mutual else None)

    def client(self, name: str = "", *, expired: bool = False) -> ClientTls:
        if not name:
            return ClientTls(ca=self.certificate)
        certificate, key = self.issue(name, "client.example", expired=expired)
        return ClientTls(ca=self.certificate, certificate=certificate, key=key)
