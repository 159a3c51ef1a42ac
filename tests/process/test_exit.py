"""Why a process ended: the classification, as a table."""

from __future__ import annotations

import signal

import pytest

from gguf_worker.process.exit import (
    ExitCause,
    ExitReport,
    Fault,
    OomEvidence,
    RawStatus,
    StopRung,
    classify,
)

KILLED = RawStatus(signal=signal.SIGKILL)
HANG = Fault(cause=ExitCause.HANG, detail="no progress")
NONE = OomEvidence.NONE


@pytest.mark.parametrize(
    ("status", "fault", "asked", "sent", "oom", "cause"),
    [
        (RawStatus(exit_code=0), None, True, (), NONE, ExitCause.CLEAN),
        (RawStatus(exit_code=0), None, False, (), NONE, ExitCause.EXIT_CODE),
        (RawStatus(exit_code=3), None, True, (), NONE, ExitCause.EXIT_CODE),
        (RawStatus(exit_code=76), None, False, (), NONE, ExitCause.PROTOCOL_ERROR),
        (RawStatus(exit_code=78), None, False, (), NONE, ExitCause.IDENTITY_MISMATCH),
        (RawStatus(signal=signal.SIGSEGV), None, False, (), NONE, ExitCause.SIGNAL_OTHER),
        (RawStatus(signal=signal.SIGSEGV), None, True, (signal.SIGTERM,), NONE, ExitCause.SIGNAL_OTHER),
        (RawStatus(signal=signal.SIGTERM), None, True, (signal.SIGTERM,), NONE, ExitCause.SIGNAL_OURS),
        (KILLED, None, False, (), NONE, ExitCause.SIGNAL_OTHER),
        (KILLED, None, False, (), OomEvidence.PROBABLE, ExitCause.OUT_OF_MEMORY_PROBABLE),
        (KILLED, None, False, (), OomEvidence.PROVEN, ExitCause.OUT_OF_MEMORY_PROVEN),
        (RawStatus(signal=signal.SIGSEGV), None, False, (), OomEvidence.PROVEN, ExitCause.SIGNAL_OTHER),
        (KILLED, HANG, True, (signal.SIGKILL,), NONE, ExitCause.HANG),
        (RawStatus(stolen=True), None, False, (), NONE, ExitCause.STATUS_STOLEN),
        (RawStatus(stolen=True), None, True, (signal.SIGTERM,), NONE, ExitCause.STATUS_STOLEN),
        (RawStatus(exit_code=3, stolen=True), None, False, (), NONE, ExitCause.EXIT_CODE),
        (RawStatus(exit_code=0, stolen=True), None, True, (), NONE, ExitCause.CLEAN),
        (RawStatus(signal=signal.SIGSEGV, stolen=True), None, False, (), NONE, ExitCause.SIGNAL_OTHER),
    ],
)
def test_classify_names_the_cause(
    status: RawStatus,
    fault: Fault | None,
    asked: bool,
    sent: tuple[int, ...],
    oom: OomEvidence,
    cause: ExitCause,
) -> None:
    """What the supervisor saw outranks the status; an unknown SIGKILL is judged by the evidence."""
    found = classify(status, fault=fault, asked_to_stop=asked, signals_sent=frozenset(sent), oom=oom)
    assert found is cause


def test_report_is_one_line_with_status_detail_and_last_words() -> None:
    """A report can be logged as it is."""
    report = ExitReport(
        cause=ExitCause.HANG,
        pid=7,
        exit_code=None,
        signal=signal.SIGKILL,
        core_dumped=False,
        detail="load made no progress",
        stderr_tail=("first", "last"),
        stop_rung=StopRung.ALREADY_GONE,
        uptime_s=1.0,
    )
    assert report.describe() == (
        "worker 7 ended: hang (signal 9 (SIGKILL)); load made no progress; last stderr line: last"
    )
    assert report.fields() == {"cause": "hang", "pid": "7", "signal": "SIGKILL"}
