"""What is said on a node's connect subject: one question and one answer, in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gguf_worker.node.relay.chunk import VERSION
from gguf_worker.node.relay.ending import Ending
from gguf_worker.node.relay.subjects import is_connection

MAX_QUESTION_BYTES: Final = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Asks a node for a link, or only who it is where `connection` is empty."""

    connection: str = ""
    token: str = field(default="", repr=False)
    window_bytes: int = 0
    max_frame_bytes: int = 0
    version: int = VERSION

    def to_json(self) -> bytes:
        """As it is sent."""
        return _dump(
            version=self.version,
            connection=self.connection,
            token=self.token,
            window_bytes=self.window_bytes,
            max_frame_bytes=self.max_frame_bytes,
        )

    @classmethod
    def from_json(cls, data: bytes) -> Question:
        """Reads one. Raises ValueError where it is none of any version."""
        if len(data) > MAX_QUESTION_BYTES:
            raise ValueError(f"{len(data)} bytes")
        said = _load(data)
        question = cls(
            connection=_text(said, "connection"),
            token=_text(said, "token"),
            window_bytes=_number(said, "window_bytes"),
            max_frame_bytes=_number(said, "max_frame_bytes"),
            version=_number(said, "version"),
        )
        is_ours = question.version == VERSION  # another version is refused as such, whatever its names are
        if is_ours and question.connection and not is_connection(question.connection):
            raise ValueError("a connection is 32 hexadecimal digits")
        return question


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A link, a refusal, or (to whoever only asked for it) a node's instance."""

    instance: str = ""
    """Random name of this run of the node."""
    epoch: int = 0
    window_bytes: int = 0
    max_frame_bytes: int = 0
    refusal: Ending | None = None
    version: int = VERSION

    def to_json(self) -> bytes:
        """As it is sent. The epoch is in hexadecimal: not every reader of JSON has 64 bits for a number."""
        refusal = {} if self.refusal is None else {"refusal": self.refusal.to_map()}
        return _dump(
            version=self.version,
            instance=self.instance,
            epoch=f"{self.epoch:x}",
            window_bytes=self.window_bytes,
            max_frame_bytes=self.max_frame_bytes,
            **refusal,
        )

    @classmethod
    def from_json(cls, data: bytes) -> Answer:
        """Reads one. Raises ValueError where it is none."""
        said = _load(data)
        return cls(
            instance=_text(said, "instance"),
            epoch=_epoch(said),
            window_bytes=_number(said, "window_bytes"),
            max_frame_bytes=_number(said, "max_frame_bytes"),
            refusal=Ending.from_map(said["refusal"]) if "refusal" in said else None,
            version=_number(said, "version"),
        )


def _dump(**values: object) -> bytes:
    return json.dumps(values).encode()


def _load(data: bytes) -> Mapping[str, object]:
    try:
        said = json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(said, dict):
        raise ValueError("not a map")
    return said


def _text(said: Mapping[str, object], name: str) -> str:
    value = said.get(name, "")
    if not isinstance(value, str):
        raise ValueError(f"{name} is not a text")
    return value


def _number(said: Mapping[str, object], name: str) -> int:
    value = said.get(name, 0)
    if not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"{name} is not a number")
    return value


def _epoch(said: Mapping[str, object]) -> int:
    value = int(_text(said, "epoch") or "0", 16)
    if not 0 <= value < 2**64:
        raise ValueError("epoch is not a number of 64 bits")
    return value
