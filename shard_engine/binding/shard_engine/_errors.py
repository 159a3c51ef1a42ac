"""The one exception of the seam, and the statuses that it carries."""

from enum import IntEnum
from typing import Any

from ._native import ffi, lib, text


class Status(IntEnum):
    """`shard_status`. The header says what state each leaves the engine in."""

    OK = 0
    ARGUMENT = 1
    NOT_FOUND = 2
    IO = 3
    NO_SPACE = 4
    MALFORMED = 5
    UNSUPPORTED = 6
    RANGE = 7
    IDENTITY = 8
    MEMORY = 9
    NO_SESSION = 10
    CAPACITY = 11
    POSITION = 12
    NON_FINITE = 13
    CANCELLED = 14
    BACKEND = 15
    NOT_OWNED = 16

    @property
    def code(self) -> str:
        """The name that the pipe protocol uses, such as "not_found"."""
        return text(lib.shard_status_name(int(self)))


class ShardEngineError(Exception):
    """Raised when a call of the seam returns a status other than OK.

    Attributes: `status`; `code`, its name in the pipe protocol; `message`, one line; `fields`, named
    values such as `{"expected": "12", "actual": "13"}`.
    """

    def __init__(self, status: Status, message: str, fields: dict[str, str]) -> None:
        super().__init__(message)
        self.status = status
        self.code = status.code
        self.message = message
        self.fields = fields

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.status.name}, {self.message!r}, {self.fields!r})"


def error_from(raw: Any) -> ShardEngineError:
    """Reads a `shard_error`."""
    fields = {text(raw.fields[i].name): text(raw.fields[i].value) for i in range(raw.n_fields)}
    return ShardEngineError(Status(raw.status), text(raw.message), fields)


def new_error() -> Any:
    """A `shard_error *` for a call to fill."""
    return ffi.new("shard_error *")


def check(status: int, raw: Any) -> None:
    """Raises what `raw` says where `status` is not OK."""
    if status != Status.OK:
        raise error_from(raw)
