"""Why a worker's process ended: one enum, one report, one pure classification. No I/O."""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass
from enum import StrEnum


class ExitCause(StrEnum):
    """Why a process ended."""

    CLEAN = "clean"
    """Exit status 0 after it was asked to stop."""
    EXIT_CODE = "exit_code"
    """It exited by itself; also with status 0 when nobody had asked."""
    SIGNAL_OURS = "signal_ours"
    """Killed by a signal that this supervisor sent as part of a stop."""
    SIGNAL_OTHER = "signal_other"
    """Killed by a signal that this supervisor did not send: a crash, or somebody else."""
    OUT_OF_MEMORY_PROVEN = "out_of_memory_proven"
    """The kernel's log names this process as killed for want of memory."""
    OUT_OF_MEMORY_PROBABLE = "out_of_memory_probable"
    """Killed by SIGKILL of unknown origin while the kernel counted an out-of-memory kill."""
    PROTOCOL_ERROR = "protocol_error"
    """One side broke the pipe protocol."""
    HANG = "hang"
    """It made no progress in a phase that it had declared."""
    STARTUP_TIMEOUT = "startup_timeout"
    """It did not say hello in time."""
    LOAD_REJECTED = "load_rejected"
    """It refused the shard that it was asked to load, and was stopped."""
    IDENTITY_MISMATCH = "identity_mismatch"
    """What it attested is not what was asked, and it was stopped."""
    STATUS_STOLEN = "status_stolen"
    """It ended, but somebody else in this program took its exit status, and the kernel did not keep it."""


class StopRung(StrEnum):
    """The rung of the stop ladder after which the process was gone."""

    ALREADY_GONE = "already_gone"
    REQUEST = "request"
    EOF = "eof"
    TERMINATE = "terminate"
    KILL = "kill"
    NONE = "none"
    """Not even SIGKILL ended it in time (a process stuck in the kernel)."""


class OomEvidence(StrEnum):
    """What speaks for an out-of-memory kill."""

    NONE = "none"
    PROBABLE = "probable"
    PROVEN = "proven"


EXIT_PROTOCOL = 76
"""The worker's exit status when this side broke the protocol."""
EXIT_IDENTITY = 78
"""The worker's exit status when its library is not the pinned one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawStatus:
    """What the kernel said of a process that ended."""

    exit_code: int | None = None
    signal: int | None = None
    core_dumped: bool = False
    stolen: bool = False
    """Somebody else reaped the process; the figures, where there are any, come from its pidfd."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What the supervisor saw before the process ended; it outranks the bare status."""

    cause: ExitCause
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitReport:
    """How a worker's process ended."""

    cause: ExitCause
    pid: int
    exit_code: int | None
    signal: int | None
    core_dumped: bool
    detail: str
    """One line for people; empty where cause and status say it all."""
    stderr_tail: tuple[str, ...]
    """The last lines that the worker wrote."""
    stop_rung: StopRung
    uptime_s: float
    status_stolen: bool = False
    """Somebody else in this program took the exit status (a `waitpid(-1)`, an ignored SIGCHLD); where it is
    known nevertheless, the kernel had kept it."""

    def describe(self) -> str:
        """One line: what ended, how, why, and the worker's last words."""
        parts = [f"worker {self.pid} ended: {self.cause.value} ({self.status_text()})"]
        if self.detail:
            parts.append(self.detail)
        if self.stderr_tail:
            parts.append(f"last stderr line: {self.stderr_tail[-1]}")
        return "; ".join(parts)

    def kind(self) -> str:
        """The cause, with the signal or status where that is the cause: equal for equal failures."""
        if self.cause is ExitCause.SIGNAL_OTHER and self.signal is not None:
            return f"{self.cause.value} {signal_name(self.signal)}"
        if self.cause is ExitCause.EXIT_CODE:
            return f"{self.cause.value} {self.exit_code}"
        return self.cause.value

    def status_text(self) -> str:
        """`exit status 3`, `signal 9 (SIGKILL)` or `status unknown`."""
        if self.signal is not None:
            return f"signal {self.signal} ({signal_name(self.signal)})"
        return "status unknown" if self.exit_code is None else f"exit status {self.exit_code}"

    def fields(self) -> dict[str, str]:
        """The report's values as the fields of an error."""
        fields = {"cause": self.cause.value, "pid": str(self.pid)}
        if self.exit_code is not None:
            fields["exit_code"] = str(self.exit_code)
        if self.signal is not None:
            fields["signal"] = signal_name(self.signal)
        return fields


def classify(
    status: RawStatus,
    *,
    fault: Fault | None,
    asked_to_stop: bool,
    signals_sent: frozenset[int],
    oom: OomEvidence,
) -> ExitCause:
    """The cause of an end, from everything that is known of it."""
    if fault is not None:
        return fault.cause
    if status.signal is None and status.exit_code is None and status.stolen:
        return ExitCause.STATUS_STOLEN
    if status.signal is None:
        return _cause_of_code(status.exit_code, asked_to_stop)
    if status.signal in signals_sent:
        return ExitCause.SIGNAL_OURS
    if status.signal == signals.SIGKILL and oom is not OomEvidence.NONE:
        proven = oom is OomEvidence.PROVEN
        return ExitCause.OUT_OF_MEMORY_PROVEN if proven else ExitCause.OUT_OF_MEMORY_PROBABLE
    return ExitCause.SIGNAL_OTHER


def _cause_of_code(exit_code: int | None, asked_to_stop: bool) -> ExitCause:
    if exit_code == 0 and asked_to_stop:
        return ExitCause.CLEAN
    special = {
        EXIT_PROTOCOL: ExitCause.PROTOCOL_ERROR,
        EXIT_IDENTITY: ExitCause.IDENTITY_MISMATCH,
    }
    return special.get(exit_code if exit_code is not None else -1, ExitCause.EXIT_CODE)


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; the number where it has no name."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return str(number)
