"""Names on a relay, and the NATS subjects that are made of them."""

from __future__ import annotations

import re
import secrets
from typing import Final

_ROOT: Final = "gguf-worker.v1.relay"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_CONNECTION: Final = re.compile(r"[0-9a-f]{32}")


def is_name(name: str) -> bool:
    """Whether a node can have this name: up to 63 letters, digits, _ and -, of which the first is none of the
    last two."""
    return _NAME.fullmatch(name) is not None


def is_connection(connection: str) -> bool:
    """Whether a link can have this id."""
    return _CONNECTION.fullmatch(connection) is not None


def new_connection() -> str:
    """An id that nobody can guess."""
    return secrets.token_hex(16)


def connect_subject(name: str) -> str:
    """Where links to a node are asked for."""
    return f"{_ROOT}.{name}.connect"


def up_subject(name: str, connection: str = "*") -> str:
    """What the client of a link sends; of all links where none is named."""
    return f"{_ROOT}.{name}.{connection}.up"


def down_subject(name: str, connection: str) -> str:
    """What the node sends on a link."""
    return f"{_ROOT}.{name}.{connection}.down"
