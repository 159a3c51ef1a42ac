"""One failure in one phase of a worker's life: what must become of it, and what did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from gguf_worker.process.exit import ExitCause, ExitReport, signal_name
from gguf_worker.testing.baseline import Baseline
from gguf_worker.testing.phases import DEADLINE_S, Observation, Phase, Scenario, rehearse

LATENCY_LIMIT_S = 30.0
"""No cell may take longer to be found; it is as generous as a machine may be busy."""


class Failure(StrEnum):
    """The rows of the matrix."""

    SIGKILL = "SIGKILL"
    SIGSEGV = "SIGSEGV"
    SIGABRT = "SIGABRT"
    SIGSTOP = "SIGSTOP"
    EXIT_0 = "exit 0"
    EXIT_3 = "exit 3"
    OUT_OF_MEMORY = "out of memory"
    GARBAGE = "garbage frame"
    HALF_FRAME = "half frame"
    HUGE_LENGTH = "huge length"
    STDERR_FLOOD = "stderr flood"
    STDIN_EOF = "stdin EOF only"
    IGNORED_SIGTERM = "ignored SIGTERM"
    GRANDCHILD = "grandchild holds the pipe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The worker ends, in one of these ways."""

    causes: tuple[ExitCause, ...]
    exit_code: int | None = None
    signal: int | None = None

    def __str__(self) -> str:
        status = ""
        if self.signal is not None:
            status = f" {signal_name(self.signal)}"
        elif self.exit_code is not None:
            status = f" status {self.exit_code}"
        return " or ".join(self.causes) + status

    def problem(self, report: ExitReport | None) -> str:
        """How a report differs from that; empty where it does not."""
        if report is None:
            return "the worker did not end"
        if report.cause in self.causes and (report.exit_code, report.signal) == (self.exit_code, self.signal):
            return ""
        return f"expected {self}, but {report.describe()}"


@dataclass(frozen=True, slots=True)
class LivesOn:
    """The worker goes on, answers, and stops cleanly when it is asked to."""

    def __str__(self) -> str:
        return "lives on"

    def problem(self, report: ExitReport | None) -> str:
        """How a report differs from that; empty where it does not."""
        return Ends(causes=(ExitCause.CLEAN,), exit_code=0).problem(report)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One failure in one phase, and what must become of it."""

    failure: Failure
    scenario: Scenario
    expected: Ends | LivesOn

    @property
    def name(self) -> str:
        return f"{self.failure} in {self.scenario.phase}"


@dataclass(frozen=True, slots=True)
class NoCell:
    """Why a failure cannot be in a phase."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """What a cell showed."""

    failure: Failure
    phase: Phase
    found: str
    """Cause and status, or `lives on`."""
    latency_s: float | None
    """See `Observation`; None where the worker lived on."""
    in_flight: int
    told: int
    """Of these, calls that were told their outcome."""
    problems: tuple[str, ...]
    """Empty where the cell is as it must be."""


# ---- making it happen ---------------------------------------------------------------------------


async def run_cell(cell: Cell) -> CellResult:
    """Makes it happen once."""
    baseline = Baseline().__enter__()
    try:
        observation = await rehearse(cell.scenario)
    except TimeoutError:
        return _endless(cell, baseline.left())
    left = baseline.left()
    return CellResult(
        failure=cell.failure,
        phase=cell.scenario.phase,
        found=_found(cell.expected, observation.exit),
        latency_s=observation.latency_s,
        in_flight=observation.in_flight,
        told=observation.in_flight - len(observation.calls.waiting),
        problems=tuple(_problems(cell, observation, left)),
    )


def _endless(cell: Cell, left: Sequence[str]) -> CellResult:
    return CellResult(
        failure=cell.failure,
        phase=cell.scenario.phase,
        found="no end",
        latency_s=None,
        in_flight=0,
        told=0,
        problems=(f"it did not come to an end within {DEADLINE_S:g} s", *left),
    )


def _found(expected: Ends | LivesOn, report: ExitReport | None) -> str:
    if isinstance(expected, LivesOn) and not expected.problem(report):
        return str(expected)
    return "lives" if report is None else report.kind()


def _problems(cell: Cell, observation: Observation, left: Sequence[str]) -> list[str]:
    found = [cell.expected.problem(observation.exit), *observation.calls.problems(), *left]
    if observation.release is None:
        found.append("nothing was measured of its release")
    else:
        found += [f"unreleased: {what}" for what in observation.release.unreleased]
    if observation.latency_s is not None and observation.latency_s > LATENCY_LIMIT_S:
        found.append(f"found after {observation.latency_s:.1f} s only")
    return [problem for problem in found if problem]
