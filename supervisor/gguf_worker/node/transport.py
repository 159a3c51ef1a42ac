"""The seam below stage streams: whole frames each way, in order, whoever carries them."""

from __future__ import annotations

from typing import Protocol

from gguf_worker._schema import Buffer
from gguf_worker.errors import GgufWorkerError


class TransportClosed(GgufWorkerError):
    """Raised when a transport carries nothing more: the peer is gone, or something on the way. `code` says
    what: `closed` (orderly, by the peer), `unreachable`, `lost`, `unauthenticated`, `too_large`, `version`,
    `deadline`. What was sent and not answered may have arrived or not."""

    default_code = "lost"


class Transport(Protocol):
    """A stream of frames between a client and one stage of a node. One task sends and one task receives."""

    @property
    def peer(self) -> str:
        """Names the other end, for people and logs."""

    @property
    def max_frame_bytes(self) -> int:
        """Largest frame that it carries."""

    async def send(self, frame: Buffer) -> None:
        """Hands over one frame; waits while the peer has too much to read already. Raises TransportClosed,
        with code `too_large` before anything was sent. Where it is cancelled the transport may end: nobody
        could tell how much of the frame was sent."""

    async def receive(self) -> bytes:
        """The next frame. Raises TransportClosed where there is none any more. Where it is cancelled no frame
        is lost, and the transport goes on."""

    async def aclose(self, error: GgufWorkerError | None = None) -> None:
        """Ends it in any state: whoever sends or receives on this side hears so at once. What a node sent
        before still arrives, as long as the client reads it within a bounded time; a client that closes has
        waited for the answers that it wants. Tells the peer why where that is possible. Never raises."""


class Dialer(Protocol):
    """Opens transports to nodes of one kind of endpoint."""

    async def connect(self, address: str, *, timeout_s: float) -> Transport:
        """A transport to the node's stage at this address. Raises TransportClosed with code `unreachable`,
        `unauthenticated` or `version` within the time."""
