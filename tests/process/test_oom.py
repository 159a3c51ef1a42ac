"""Evidence of an out-of-memory kill."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gguf_worker.process import oom
from gguf_worker.process.exit import OomEvidence
from gguf_worker.process.oom import OomWatch, names_killed

LOG = [
    b"6,100,5000000,-;Linux version",
    b"3,101,7000000,-;Out of memory: Killed process 42 (worker) total-vm:1kB",
    b"garbage without a head",
]


def test_kernel_log_that_names_the_process_is_proof() -> None:
    """Only a record of this process, from after it began, proves anything."""
    assert names_killed(LOG, 42, since_us=6_000_000)
    assert not names_killed(LOG, 4, since_us=6_000_000)
    assert not names_killed(LOG, 42, since_us=8_000_000)


@pytest.mark.parametrize(
    ("before", "after", "log", "expected"),
    [
        (5, 5, LOG, OomEvidence.NONE),
        (5, 6, [], OomEvidence.PROBABLE),
        (5, 6, LOG, OomEvidence.PROVEN),
        (None, None, LOG, OomEvidence.NONE),
    ],
)
def test_evidence_needs_a_kill_and_proof_needs_the_log(
    before: int | None,
    after: int | None,
    log: list[bytes],
    expected: OomEvidence,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A count that rose is a hint; a name in the kernel's log is proof; without a count there is neither."""
    monkeypatch.setattr(oom, "_count_kills", lambda: after)
    monkeypatch.setattr(oom, "_kernel_log", lambda: log)
    assert OomWatch(kills_before=before, started_us=0).evidence(42) is expected


def test_record_that_comes_a_moment_later_is_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel kills first and writes of it then."""
    looks = iter([[], LOG])
    monkeypatch.setattr(oom, "_count_kills", lambda: 6)
    monkeypatch.setattr(oom, "_kernel_log", lambda: next(looks))
    assert OomWatch(kills_before=5, started_us=0).evidence(42) is OomEvidence.PROVEN


@pytest.mark.skipif(sys.platform != "linux", reason="the counter is Linux's")
def test_watch_begins_with_the_machines_own_count() -> None:
    """The real counter is read, without any privilege."""
    line = next(
        line for line in Path("/proc/vmstat").read_text().splitlines() if line.startswith("oom_kill ")
    )
    kills = OomWatch.begin().kills_before
    assert kills is not None
    assert kills >= int(line.split()[1])
