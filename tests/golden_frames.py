"""Reads tests/golden/frames.tsv, the frames that docs/protocol.md shares between C and Python."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent / "golden" / "frames.tsv"


@dataclass(frozen=True)
class Golden:
    """One line: a frame, what it is called, and what a receiver must make of it."""

    name: str
    direction: str
    verdict: str
    frame: bytes
    message: Any


def load() -> list[Golden]:
    """Every golden frame."""
    return [_parse(line) for line in PATH.read_text(encoding="utf-8").splitlines() if line]


def _parse(line: str) -> Golden:
    name, direction, verdict, frame, message = line.split("\t")
    return Golden(name, direction, verdict, bytes.fromhex(frame), json.loads(message, object_hook=_special))


def _special(value: dict[str, Any]) -> Any:
    if value.keys() == {"$bin"}:
        return bytes.fromhex(value["$bin"])
    return float(value["$float"]) if value.keys() == {"$float"} else value
