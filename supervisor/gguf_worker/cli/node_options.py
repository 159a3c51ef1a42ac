"""Options of nodes and of those who use them."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gguf_worker.cli.errors import CommandError

if TYPE_CHECKING:
    from gguf_worker.node.grpc import ClientTls, GrpcClientOptions, GrpcOptions, Tokens
    from gguf_worker.serving.address import Address

NODE_PANEL = "Node: the workers as stages of a mesh"
PEER_PANEL = "Nodes: how they are reached"
TOKEN_VARIABLE = "GGUF_WORKER_TOKEN"


def _node(*names: str, help: str, **settings: Any) -> Any:  # noqa: A002 - typer's own name
    return typer.Option(*names, help=help, rich_help_panel=NODE_PANEL, **settings)


def _peer(*names: str, help: str, **settings: Any) -> Any:  # noqa: A002
    return typer.Option(*names, help=help, rich_help_panel=PEER_PANEL, **settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """How workers become a node."""

    node: Annotated[
        str | None,
        _node(
            "--node",
            metavar="NAME",
            help="The node's name, unique in the mesh. [dim]Default: this machine's.[/dim]",
        ),
    ] = None
    listen: Annotated[
        str | None,
        _node(
            "--listen",
            metavar="HOST:PORT",
            help="Serve stage streams over gRPC there; port 0 is any that is free. Anything but loopback "
            "needs --tls-cert, --tls-key and --token-file, or --insecure.",
        ),
    ] = None
    advertise: Annotated[
        str | None,
        _node(
            "--advertise",
            metavar="HOST:PORT",
            help="What others dial, where that is not the address that is listened on.",
        ),
    ] = None
    relay: Annotated[
        bool,
        _node("--relay", help="Take stage streams over the tracker's NATS as well, for who cannot dial."),
    ] = False
    tls_cert: Annotated[
        Path | None, _node("--tls-cert", metavar="FILE", help="Certificate chain of this node, PEM.")
    ] = None
    tls_key: Annotated[Path | None, _node("--tls-key", metavar="FILE", help="Private key of --tls-cert.")] = (
        None
    )
    client_ca: Annotated[
        Path | None,
        _node(
            "--client-ca",
            metavar="FILE",
            help="Only clients with a certificate of this authority may connect.",
        ),
    ] = None
    token_file: Annotated[
        Path | None,
        _node(
            "--token-file",
            metavar="FILE",
            help="Who may use this node: one token a line, with the account that pays after it. "
            f"[dim]Default: ${TOKEN_VARIABLE}, where it is set.[/dim]",
        ),
    ] = None
    insecure: Annotated[
        bool, _node("--insecure", help="Listen without TLS and token where others can reach it.")
    ] = False
    certificate: Annotated[
        list[Path] | None,
        _node(
            "--certificate",
            metavar="FILE",
            help="A certificate for the recipe, as `gguf-worker certify` writes it; without one that the "
            "tracker knows no route goes through this node. The API brings workers that die back in fewer "
            "steps where it says chunk-invariant. May be given again.",
        ),
    ] = None
    ledger: Annotated[
        Path | None,
        _node(
            "--ledger",
            metavar="FILE",
            help="Where receipts are kept. [dim]Default: $XDG_STATE_HOME/gguf-worker/receipts.sqlite.[/dim]",
        ),
    ] = None

    @property
    def is_given(self) -> bool:
        """Whether anything says that this is to be a node; a certificate may be for the API."""
        return replace(self, certificate=None) != NodeOptions()

    @property
    def of_listening(self) -> list[str]:
        """The options given that mean something to --listen only."""
        given = {
            "--advertise": self.advertise,
            "--tls-cert": self.tls_cert,
            "--tls-key": self.tls_key,
            "--client-ca": self.client_ca,
            "--insecure": self.insecure or None,
        }
        return [name for name, value in given.items() if value is not None]

    def address(self) -> Address | None:
        """Where it listens. Raises CommandError."""
        return None if self.listen is None else parse_address("--listen", self.listen)

    def advertised(self) -> str | None:
        """What others dial. Raises CommandError."""
        return None if self.advertise is None else str(parse_address("--advertise", self.advertise))

    def grpc(self) -> GrpcOptions:
        """How gRPC listens. Raises CommandError, and GgufWorkerError for a file that does not do."""
        from gguf_worker.node.grpc import GrpcOptions, ServerTls

        if (self.tls_cert is None) != (self.tls_key is None):
            raise CommandError("--tls-cert and --tls-key belong together", remedy="give both")
        if self.client_ca is not None and self.tls_cert is None:
            raise CommandError("--client-ca needs TLS", remedy="give --tls-cert and --tls-key as well")
        tls = None
        if self.tls_cert is not None and self.tls_key is not None:
            tls = ServerTls(certificate=self.tls_cert, key=self.tls_key, client_ca=self.client_ca)
        options = GrpcOptions(tls=tls, tokens=self.tokens(), insecure=self.insecure)
        address = self.address()
        return options if address is None else replace(options, listen=address)

    def tokens(self) -> Tokens | None:
        """Who may use the node; None is everybody. Raises GgufWorkerError."""
        from gguf_worker.node.grpc import Tokens

        return Tokens.from_environment() if self.token_file is None else Tokens.from_file(self.token_file)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOptions:
    """How a client reaches nodes."""

    relay_only: Annotated[
        bool, _peer("--relay-only", help="Never dial a node: go through the relay, as far as it is served.")
    ] = False
    node_ca: Annotated[
        Path | None,
        _peer(
            "--node-ca",
            metavar="FILE",
            help="Authority that vouches for the nodes. [dim]Default: the system's.[/dim]",
        ),
    ] = None
    client_cert: Annotated[
        Path | None,
        _peer(
            "--client-cert", metavar="FILE", help="Certificate that this side shows, where nodes ask for one."
        ),
    ] = None
    client_key: Annotated[
        Path | None, _peer("--client-key", metavar="FILE", help="Private key of --client-cert.")
    ] = None
    token_file: Annotated[
        Path | None,
        _peer(
            "--token-file",
            metavar="FILE",
            help=f"The token that nodes ask for. [dim]Default: ${TOKEN_VARIABLE}.[/dim]",
        ),
    ] = None
    insecure: Annotated[
        bool, _peer("--insecure", help="Send the token unencrypted where a node has no TLS.")
    ] = False

    def __post_init__(self) -> None:
        """Raises CommandError for what does not go together."""
        if (self.client_cert is None) != (self.client_key is None):
            raise CommandError("--client-cert and --client-key belong together", remedy="give both")
        if self.relay_only and (self.node_ca or self.client_cert or self.insecure):
            raise CommandError(
                "--node-ca, --client-cert and --insecure are for dialling, and --relay-only dials none",
                remedy="leave one or the other out",
            )

    def token(self) -> str:
        """The token; empty where there is none. Raises GgufWorkerError."""
        from gguf_worker.node.grpc import read_token

        return os.environ.get(TOKEN_VARIABLE, "") if self.token_file is None else read_token(self.token_file)

    def grpc(self, *, tls: bool) -> GrpcClientOptions:
        """How nodes with or without TLS are dialled. Raises GgufWorkerError."""
        from gguf_worker.node.grpc import GrpcClientOptions

        return GrpcClientOptions(tls=self._tls() if tls else None, token=self.token(), insecure=self.insecure)

    def _tls(self) -> ClientTls:
        from gguf_worker.node.grpc import ClientTls

        return ClientTls(ca=self.node_ca, certificate=self.client_cert, key=self.client_key)


def parse_address(option: str, text: str) -> Address:
    """Reads an option's HOST:PORT. Raises CommandError."""
    from gguf_worker.serving.address import Address, AddressError

    try:
        return Address.parse(text)
    except AddressError as error:
        raise CommandError(f"{option}: {error}") from error
