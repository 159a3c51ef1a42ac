"""Fault plans of the fake engine, as typed builders.

    spec = ShardSpec(FAKE_MODEL, engine="fake", fault_plan=plan(crash(step=3), ignore_term()))

Steps count from 1, the first one after the load. Everything here happens inside the worker, at a chosen step
or frame; `gguf_worker.testing.phases` does things to it from outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

FAKE_MODEL = "fake:layers=4,embd=8,vocab=64"
"""A model of the fake engine: it needs no file, loads at once and computes with integers."""

FOREVER_MS = 600_000
"""For `slow` and `load_slow`: as long as a test may last, and longer."""


class Frame(StrEnum):
    """The messages that a worker sends; docs/protocol.md says what each is."""

    HELLO = "hello"
    PROGRESS = "progress"
    LOADED = "loaded"
    OPENED = "opened"
    RESULT = "result"
    TRIMMED = "trimmed"
    CLOSED = "closed"
    TOKENIZED = "tokenized"
    DETOKENIZED = "detokenized"
    TOKEN_INFOS = "token_infos"
    INSPECTED = "inspected"
    SLICED = "sliced"
    ESTIMATED = "estimated"
    PONG = "pong"
    HEALTH = "health"
    CANCELLED = "cancelled"
    ERROR = "error"
    BYE = "bye"


@dataclass(frozen=True, slots=True)
class Fault:
    """One failure on purpose, as a word of a fault plan."""

    word: str

    def __str__(self) -> str:
        return self.word


def plan(*faults: Fault) -> str:
    """The fault plan with these failures, for `ShardSpec.fault_plan`."""
    return ",".join(fault.word for fault in faults)


# ---- in a step of the engine --------------------------------------------------------------------


def crash(*, step: int) -> Fault:
    """SIGABRT in a step."""
    return Fault(f"crash@{step}")


def segv(*, step: int) -> Fault:
    """SIGSEGV in a step."""
    return Fault(f"segv@{step}")


def leave(status: int, *, step: int) -> Fault:
    """The process ends in a step, with an exit status of 0 to 255."""
    return Fault(f"exit:{status}@{step}")


def hang(*, step: int, heeds_cancel: bool = True) -> Fault:
    """A step makes no progress until it is cancelled, or not even then."""
    return Fault(f"hang@{step}" if heeds_cancel else f"hang-hard@{step}")


def slow(milliseconds: int) -> Fault:
    """Every step takes so much longer; it makes progress and heeds a cancel."""
    return Fault(f"slow:{milliseconds}")


def not_a_number(*, step: int) -> Fault:
    """A step makes a NaN, which fails its requests with code `non_finite`."""
    return Fault(f"nan@{step}")


def overflow(*, step: int) -> Fault:
    """A step makes a value that a boundary of f16 cannot hold."""
    return Fault(f"overflow@{step}")


def allocate(*, step: int) -> Fault:
    """A step takes memory until the process is killed, or until it is refused any."""
    return Fault(f"allocate@{step}")


def flood_stderr(*, step: int) -> Fault:
    """A step writes 4 MiB of lines to stderr and goes on."""
    return Fault(f"stderr-flood@{step}")


# ---- in the load --------------------------------------------------------------------------------


def load_slow(milliseconds: int) -> Fault:
    """The load takes so much longer; it reports progress and heeds a cancel."""
    return Fault(f"load-slow:{milliseconds}")


def load_fail() -> Fault:
    """The load is refused with code `backend`."""
    return Fault("load-fail")


def load_hang() -> Fault:
    """The load never ends and makes no progress."""
    return Fault("load-hang")


def load_crash() -> Fault:
    """SIGABRT in the load."""
    return Fault("load-crash")


# ---- on the pipe: in place of the frames of one type --------------------------------------------


def hold(frame: Frame) -> Fault:
    """The frame is never sent, nor any after it; the process lives on."""
    return Fault(f"hold@{frame}")


def half_frame(frame: Frame) -> Fault:
    """Half of the frame is sent, and nothing after it."""
    return Fault(f"half-frame@{frame}")


def huge_length(frame: Frame) -> Fault:
    """A header that claims 4 GiB."""
    return Fault(f"huge-length@{frame}")


def garbage(frame: Frame) -> Fault:
    """Text, as of a library that prints to stdout."""
    return Fault(f"garbage@{frame}")


def leave_at(frame: Frame, status: int) -> Fault:
    """The process ends with an exit status of 0 to 255 before it sends the frame."""
    return Fault(f"exit:{status}@{frame}")


def flood_stderr_at(frame: Frame) -> Fault:
    """4 MiB of lines on stderr before the frame, which is then sent."""
    return Fault(f"stderr-flood@{frame}")


# ---- from the start -----------------------------------------------------------------------------


def ignore_term() -> Fault:
    """SIGTERM is ignored."""
    return Fault("ignore-term")


def grandchild(*, in_own_session: bool = False) -> Fault:
    """The worker starts a process that holds its pipes open, in its own process group or out of its reach."""
    return Fault("grandchild-away" if in_own_session else "grandchild")
