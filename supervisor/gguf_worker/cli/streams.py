"""The standard streams: whatever they are, what is written to them does no harm."""

from __future__ import annotations

import io
import os
import sys
from typing import Literal, TextIO


def prepare_streams() -> None:
    """Gives every stream that is closed a place to write to, and lets none fail on a character.

    A stream that is None would send what is printed on stderr to stdout, and its number to the next file.
    """
    if sys.stdin is None:
        sys.stdin = _nowhere("r")
    if sys.stdout is None:
        sys.stdout = _nowhere("w")
    if sys.stderr is None:
        sys.stderr = _nowhere("w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _nowhere(mode: Literal["r", "w"]) -> TextIO:
    return os.fdopen(os.open(os.devnull, os.O_RDWR), mode)


def abandon_streams() -> None:
    """Points them elsewhere, so that the interpreter's last flush does not complain a second time."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())


def settle_stdout() -> None:
    """Flushes stdout, or gives it up where that fails: it may be what went wrong in the first place."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
