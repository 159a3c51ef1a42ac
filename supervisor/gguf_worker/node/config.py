"""What a node is in a mesh: its name, where it listens, whom it tells."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass

from gguf_worker.errors import GgufWorkerError
from gguf_worker.node.tracker.registration import is_name
from gguf_worker.serving.address import Address

LONGEST_NAME = 63


class NodeConfigError(GgufWorkerError):
    """Raised when a node cannot be what it was told to be."""

    default_code = "node_config"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """A node. Times are in seconds."""

    name: str
    """Unique in the mesh; see `check_name`."""
    is_dialled: bool = False
    """Whether it takes streams over gRPC; `Surroundings.grpc` says where."""
    advertise: str | None = None
    """The HOST:PORT that others dial, where that is not what is listened on."""
    relay: bool = False
    """Whether it takes streams over NATS."""
    heartbeat_s: float = 2.0
    lease_s: float = 6.0
    drain_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.advertise is not None and not self.is_dialled:
            raise NodeConfigError("an address is advertised and none is listened on (give --listen as well)")
        if self.advertise is not None:
            check_can_be_dialled(self.advertise)


def check_name(name: str) -> None:
    """Raises NodeConfigError where nothing in a mesh can be called that."""
    if not is_name(name):
        raise NodeConfigError(
            f"{name!r} is no name for a node (1 to {LONGEST_NAME} letters, digits, _ and -, the first one a "
            "letter or digit)"
        )


def check_can_be_dialled(address: str) -> None:
    """Raises NodeConfigError: every address of this machine is none for another one, and no port is any."""
    parsed = Address.parse(address)
    if parsed.host in ("0.0.0.0", "::") or not parsed.port:
        raise NodeConfigError(
            f"{address} is no address that others can dial (give --advertise HOST:PORT as others reach it)"
        )


def usual_name() -> str:
    """This machine's name, as a node's."""
    host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname().partition(".")[0]).strip("-_")
    return host[:LONGEST_NAME] or "node"
