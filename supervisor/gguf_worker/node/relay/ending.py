"""Why a link ended, in this process and in the message that tells the peer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gguf_worker._schema import Buffer
from gguf_worker.errors import GgufWorkerError
from gguf_worker.node.transport import TransportClosed

MAX_BYTES: Final = 2048
"""Of an ending as JSON; a longer one loses its fields, and the end of its message."""

MOST_LETTERS: Final = MAX_BYTES // 16
"""Of a message that is cut; JSON may need 12 bytes for a letter."""
_CODES: Final = ("closed", "unreachable", "lost", "unauthenticated", "too_large", "version", "deadline")
"""What `TransportClosed` may say; whatever else the peer says is in the field `reason`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The facts of an error, from which one is made for everybody who asks."""

    code: str
    message: str
    retryable: bool = False
    fields: Mapping[str, str] = field(default_factory=dict)

    def error(self) -> TransportClosed:
        """A fresh error."""
        return TransportClosed(self.message, code=self.code, retryable=self.retryable, fields=self.fields)

    def to_map(self) -> dict[str, object]:
        """As JSON has it; cut where it is long."""
        whole = {
            "code": self.code,
            "message": self.message,
            "retryable": self.retryable,
            "fields": dict(self.fields),
        }
        if len(json.dumps(whole)) <= MAX_BYTES:
            return whole
        return {**whole, "message": self.message[:MOST_LETTERS], "fields": {}}

    def to_json(self) -> bytes:
        """For the peer."""
        return json.dumps(self.to_map()).encode()

    @classmethod
    def of(cls, error: GgufWorkerError | None, *, otherwise: str) -> Ending:
        """Of an error, or an orderly end in the words of `otherwise`."""
        if error is None:
            return cls(code="closed", message=otherwise)
        return cls(code=error.code, message=error.message, retryable=error.retryable, fields=error.fields)

    @classmethod
    def from_map(cls, said: object) -> Ending:
        """What the peer said; an orderly end where nobody understands it."""
        if not isinstance(said, dict) or not isinstance(said.get("code"), str):
            return cls(code="closed", message="the peer closed the link")
        code, fields = said["code"], said.get("fields")
        fields = {str(name): str(value) for name, value in fields.items()} if isinstance(fields, dict) else {}
        if code not in _CODES:
            code, fields = "closed", {**fields, "reason": code}
        return cls(
            code=code,
            message=str(said.get("message", code))[:MAX_BYTES],
            retryable=said.get("retryable") is True,
            fields=fields,
        )

    @classmethod
    def from_json(cls, data: Buffer) -> Ending:
        """As `from_map`."""
        try:
            return cls.from_map(json.loads(bytes(data)))
        except (ValueError, RecursionError):
            return cls.from_map(None)
