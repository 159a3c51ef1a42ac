"""The API beside supervised shards, as `serve` opens it."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette

from gguf_worker.cli.errors import CommandError
from gguf_worker.cli.gateway_options import ApiOptions
from gguf_worker.gateway.app import gateway_app
from gguf_worker.gateway.catalogue import OneModel, name_of_file
from gguf_worker.gateway.gateway import Gateway, GatewaySettings, Keys, open_gateway
from gguf_worker.gateway.local import Judge, model_of_service
from gguf_worker.gateway.model import ModelSettings
from gguf_worker.logs import log_event
from gguf_worker.serving.address import Address, bound_address, is_loopback, listen
from gguf_worker.serving.app import status_routes
from gguf_worker.serving.service import Service
from gguf_worker.status_page.board import Board
from gguf_worker.status_page.pages import page_routes

log = logging.getLogger("gguf_worker.serve")

REMEDY = "give --api-key-file, or --http-insecure to let everybody use it"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedApi:
    """The API as the command line asks for it."""

    name: str
    """Of the model."""
    keys: Keys | None
    is_insecure: bool
    """Whether everybody may ask, from wherever."""
    model: ModelSettings
    gateway: GatewaySettings
    drain_timeout_s: float
    certificates: tuple[Path, ...] = ()
    """Of which one may stand for the workers."""

    @classmethod
    def of(
        cls, options: ApiOptions, name: str, *, drain_timeout_s: float, certificates: Sequence[Path] = ()
    ) -> ServedApi:
        """Raises GgufWorkerError."""
        return cls(
            name=name_of_file(name),
            keys=options.keys(),
            is_insecure=options.http_insecure,
            model=options.model_settings(),
            gateway=options.gateway_settings(),
            drain_timeout_s=drain_timeout_s,
            certificates=tuple(certificates),
        )

    def may_listen_on(self, sockets: Sequence[socket.socket]) -> bool:
        """Whether the API may be had there: with a key, or from this machine only. The log says where not."""
        bound = None if self.is_insecure or self.keys is not None else _reached_by_others(sockets)
        if bound is not None:
            text = f"no API at {bound}, which other machines reach: {REMEDY}"
            log_event(log, logging.WARNING, "gateway_off", text, address=str(bound))
        return bound is None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[OpenApi]:
        """The API while this is open; it has a model while `model_of` is. Raises OSError and CertificateError
        for a certificate that cannot be read."""
        catalogue, judge = OneModel(self.name), _judge_of(self.certificates)
        async with open_gateway(catalogue, keys=self.keys, settings=self.gateway) as gateway:
            yield OpenApi(config=self, catalogue=catalogue, gateway=gateway, judge=judge)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenApi:
    """The API of a service."""

    config: ServedApi
    catalogue: OneModel
    gateway: Gateway
    judge: Judge
    """Says what the certificates do of the service's workers."""

    def app(self, service: Service, board: Board) -> Starlette:
        """With the service's own pages."""
        pages = page_routes(board, self.gateway.account_of)
        return gateway_app(self.gateway, [*pages, *status_routes(service)])

    def model_of(self, service: Service) -> AbstractAsyncContextManager[None]:
        """Answers with the service's shards while this is open."""
        return model_of_service(
            service,
            self.gateway,
            self.catalogue,
            settings=self.config.model,
            drain_timeout_s=self.config.drain_timeout_s,
            is_chunk_invariant=self.judge,
        )


def listen_guarded(address: Address, *, keys: Keys | None, is_insecure: bool) -> list[socket.socket]:
    """Sockets for the API alone. Raises CommandError where anybody could use it from elsewhere."""
    sockets = listen(address)
    bound = None if is_insecure or keys is not None else _reached_by_others(sockets)
    if bound is not None:
        for listener in sockets:
            listener.close()
        raise CommandError(f"--http {bound} is reached by other machines, and no key is asked", remedy=REMEDY)
    for listener in sockets:
        where = bound_address(listener)
        log_event(log, logging.INFO, "http_listening", f"API at http://{where}/v1", address=str(where))
    return sockets


def _judge_of(certificates: Sequence[Path]) -> Judge:
    if not certificates:
        return lambda _: False
    from gguf_worker.cli.certified import Certified  # with it comes what nodes are made of

    return Certified.of_files(certificates).is_chunk_invariant


def _reached_by_others(sockets: Sequence[socket.socket]) -> Address | None:
    """The first address that is not this machine's own."""
    bound = map(bound_address, sockets)
    return next((address for address in bound if not is_loopback(address)), None)
