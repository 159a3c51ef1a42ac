"""Who may reach a node: loopback as it is; anything else with TLS and a token, or on purpose without."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from gguf_worker.errors import GgufWorkerError
from gguf_worker.logs import log_event
from gguf_worker.node.grpc.certificates import read_authorities, read_pair
from gguf_worker.node.grpc.files import Reread
from gguf_worker.node.grpc.limits import GrpcLimits
from gguf_worker.node.grpc.tokens import Tokens
from gguf_worker.serving.address import Address, is_loopback, listen, resolve

log = logging.getLogger(__name__)


class SecurityError(GgufWorkerError):
    """Raised where a node would be open to anybody, or a token to be read by anybody."""

    default_code = "security"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """Files in PEM, without a passphrase. They are read again when they change."""

    certificate: Path
    """The node's own, with what lies between it and the authority."""
    key: Path
    client_ca: Path | None = None
    """Who vouches for clients; None where clients show no certificate."""

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.certificate, self.key, *([self.client_ca] if self.client_ca else ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """Files in PEM, without a passphrase."""

    ca: Path | None = None
    """Who vouches for nodes; None is gRPC's own list of public authorities."""
    certificate: Path | None = None
    """The client's own, where nodes ask for one; with its key."""
    key: Path | None = None
    server_name: str = ""
    """What the node's certificate is made out to, where that is not the host that is dialled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcOptions:
    """How a node listens."""

    listen: Address = field(default_factory=lambda: Address("127.0.0.1", 0))
    tls: ServerTls | None = None
    tokens: Tokens | None = None
    """Who may call; None is everybody who can connect."""
    insecure: bool = False
    """Listens on any address without TLS and without a token, if so told."""
    limits: GrpcLimits = field(default_factory=GrpcLimits)
    grace_s: float = 5.0
    """How long open streams may take to end when the server is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcClientOptions:
    """How nodes are dialled."""

    tls: ClientTls | None = None
    """None is in the clear."""
    token: str = field(default="", repr=False)
    insecure: bool = False
    """Sends the token in the clear to other machines as well."""
    limits: GrpcLimits = field(default_factory=GrpcLimits)


def addresses_to_listen_on(options: GrpcOptions) -> list[Address]:
    """Every address that the host stands for (with port 0, the first one). Raises SecurityError where others
    than this machine could connect to one of them and nothing protects it, and AddressError."""
    addresses = resolve(options.listen)
    exposed = [address for address in addresses if not is_loopback(address)]
    missing = " and ".join(
        [*(["TLS"] if options.tls is None else []), *(["a token"] if options.tokens is None else [])]
    )
    if exposed and missing and not options.insecure:
        raise SecurityError(
            f"{exposed[0]} can be reached from other machines, and {missing} is missing: give a certificate "
            "with its key and a file of tokens, listen on 127.0.0.1, or say insecure where the network is "
            "trusted",
            fields={"address": str(exposed[0]), "missing": missing},
        )
    if exposed and missing:
        log_event(
            log,
            logging.WARNING,
            "grpc_insecure",
            f"INSECURE: {exposed[0]} can be reached from other machines without {missing}: whoever can "
            "connect can use this node, or read and change what is sent",
            address=str(exposed[0]),
            missing=missing,
        )
    if not options.listen.port:
        return addresses[:1]
    for probe in listen(options.listen):  # says better than gRPC why an address cannot be listened on
        probe.close()
    return addresses


def server_credentials(tls: ServerTls) -> grpc.ServerCredentials:
    """Raises CertificateError. Renewed files are used for new connections."""
    configurations = Reread(tls.files, lambda: _configuration(tls))
    used = configurations.get()

    def renewed() -> Any:
        nonlocal used
        newest = configurations.get()
        used, before = newest, used
        return None if newest is before else newest  # None is no change

    return grpc.dynamic_ssl_server_credentials(
        used, renewed, require_client_authentication=tls.client_ca is not None
    )


def channel_credentials(tls: ClientTls) -> grpc.ChannelCredentials:
    """Raises CertificateError, and SecurityError where half of a pair is missing."""
    if (tls.certificate is None) != (tls.key is None):
        raise SecurityError("a certificate and its key go together: give both of them, or none")
    chain = key = None
    if tls.certificate is not None and tls.key is not None:
        chain, key = read_pair(tls.certificate, tls.key)
    roots = None if tls.ca is None else read_authorities(tls.ca)
    return grpc.ssl_channel_credentials(roots, key, chain)


def check_token_stays_secret(address: Address, options: GrpcClientOptions) -> None:
    """Raises SecurityError where the token would cross a network in the clear. Of names only `localhost` is
    taken for this machine: what another one stands for may change until it is dialled."""
    if not options.token or options.tls is not None or options.insecure:
        return
    if address.host != "localhost" and not _is_loopback_literal(address):
        raise SecurityError(
            f"a token is not sent to {address} in the clear: dial it with TLS, or say insecure where the "
            "network is trusted",
            fields={"address": str(address)},
        )


def _is_loopback_literal(address: Address) -> bool:
    try:
        return is_loopback(address)
    except ValueError:
        return False  # a name


def _configuration(tls: ServerTls) -> grpc.ServerCertificateConfiguration:
    chain, key = read_pair(tls.certificate, tls.key)
    authorities = None if tls.client_ca is None else read_authorities(tls.client_ca)
    return grpc.ssl_server_certificate_configuration([(key, chain)], authorities)
