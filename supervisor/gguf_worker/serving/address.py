"""Where HTTP listens."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
from dataclasses import dataclass

from gguf_worker.errors import GgufWorkerError

BACKLOG = 128


class AddressError(GgufWorkerError):
    """Raised when an address is none, or cannot be listened on."""

    default_code = "address"


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port; port 0 is any that is free."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Reads `127.0.0.1:8080`, `localhost:8080` or `[::1]:8080`. Raises AddressError."""
        match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%a-z]+)\]|([^\[\]:\s]+)):([0-9]{1,5})", text)
        if match is None or int(match[3]) > 65535:
            raise AddressError(
                f"{text!r} is not an address (write HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080)"
            )
        return cls(match[1] or match[2], int(match[3]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def listen(address: Address) -> list[socket.socket]:
    """Sockets that listen on every address that the host stands for (with port 0, on the first one), so that
    clients may connect from now on. Raises AddressError."""
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, _, _, _, place in found if address.port else found[:1]:
            sockets.append(_listener(family, place))
    except OSError as error:
        for opened in sockets:
            opened.close()
        raise AddressError(f"cannot listen on {address}: {_reason(error)}") from error
    return sockets


def resolve(address: Address) -> list[Address]:
    """The numeric addresses that the host stands for, to listen on or to dial. Raises AddressError."""
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise AddressError(f"{address} cannot be found: {_reason(error)}") from error
    return list(dict.fromkeys(Address(str(place[0]), int(place[1])) for _, _, _, _, place in found))


def bound_address(listener: socket.socket) -> Address:
    """Where a socket really listens."""
    host, port = listener.getsockname()[:2]
    return Address(host, port)


def is_loopback(address: Address) -> bool:
    """Whether only this machine can connect to a bound address."""
    return ipaddress.ip_address(address.host.partition("%")[0]).is_loopback


def _listener(family: int, place: object) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(place)  # type: ignore[arg-type]
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _reason(error: OSError) -> str:
    remedies = {
        errno.EADDRINUSE: " (choose another port, or 0 for any that is free)",
        errno.EACCES: " (ports below 1024 are for root; choose another one)",
        errno.EADDRNOTAVAIL: " (this machine has no such address)",
    }
    if isinstance(error, socket.gaierror):
        return f"{error.strerror} (check the host's name)"
    assert error.errno is not None
    return os.strerror(error.errno).lower() + remedies.get(error.errno, "")
