"""The figures, each with small numbers; and that a promise which is not kept is told."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gguf_worker.testing import Failure, Phase, kill_matrix
from gguf_worker.testing import __main__ as program
from gguf_worker.testing.figures import latency
from gguf_worker.testing.figures.cycles import start_stop_cycles
from gguf_worker.testing.figures.figure import Figure, percentile
from gguf_worker.testing.figures.giveup import crash_loops
from gguf_worker.testing.figures.latency import detection_latency
from gguf_worker.testing.figures.orphans import killed_supervisors
from gguf_worker.testing.figures.storm import random_kills
from gguf_worker.testing.report import figure_line

Note = Callable[[str], None]


def _noted(figure: Figure, note: Note) -> Figure:
    for line in figure_line(figure).splitlines():
        note(line)
    return figure


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the end of a process is awaited by pidfd")


@LINUX
@pytest.mark.anyio
async def test_detection_latency_is_measured(note: Note) -> None:
    """The order of the percentiles holds on any machine; the limit is for `make faults` on a quiet one."""
    values = _noted(await detection_latency(5), note).values
    for what in ("after_end", "after_signal"):
        p50, p99, most = (float(values[f"{what}_{name}_ms"]) for name in ("p50", "p99", "max"))
        assert 0 <= p50 <= p99 <= most
    assert float(values["after_signal_p50_ms"]) > 0


@pytest.mark.anyio
async def test_random_kills_lose_no_request(note: Note) -> None:
    """Whenever a worker dies, in its start too, each call comes out once, and the right answers are right."""
    figure = _noted(await random_kills(40, seed=7), note)
    assert figure.problems == ()
    assert figure.values["answered"]
    assert figure.values["failed_with_death"]


@pytest.mark.anyio
async def test_start_and_stop_leave_nothing(note: Note) -> None:
    """Descriptors, threads, shared memory and children are what they were."""
    figure = _noted(await start_stop_cycles(5), note)
    assert [p for p in figure.problems if "resident memory" not in p] == []


@pytest.mark.anyio
async def test_crash_loops_are_given_up_after_exactly_n_restarts(note: Note) -> None:
    """With each of several limits."""
    figure = _noted(await crash_loops(), note)
    assert figure.problems == ()
    assert figure.values["processes_started"] == "1, 2, 4, 9"


@LINUX
def test_workers_of_killed_supervisors_are_gone(note: Note) -> None:
    """One in each state."""
    figure = _noted(killed_supervisors(1), note)
    assert figure.values["supervisors"] == 5
    assert figure.problems == ()


def test_program_writes_evidence_and_names_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine, versions and command are in the file; where things lie on this machine is not."""
    arguments = ["--only", "limit", "--evidence", str(tmp_path / "evidence")]
    monkeypatch.setattr("sys.argv", ["testing", *arguments])
    assert program.main() == 0
    written = (tmp_path / "evidence" / "faults-figures.json").read_text()
    content = json.loads(written)
    assert content["figures"][0]["kept"] is True
    assert content["machine"]["processors"] >= 1
    assert content["command"].startswith("python -m gguf_worker.testing --only limit ")
    assert str(tmp_path) not in written
    assert str(Path.cwd()) not in written


def test_program_shows_the_matrix_and_the_cells_that_there_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table for people; in the file every cell that was run, and why others cannot be."""
    cell = kill_matrix()[Failure.SIGKILL, Phase.IDLE]
    monkeypatch.setattr(program, "cells_here", lambda: [cell])
    monkeypatch.setattr("sys.argv", ["testing", "--only", "matrix", "--evidence", str(tmp_path)])
    assert program.main() == 0
    printed = capsys.readouterr().out
    assert "signal_other SIGKILL" in printed
    assert "no cell for stdin EOF only in hello: " in printed
    cells = json.loads((tmp_path / "faults-matrix.json").read_text())["cells"]
    assert cells[0]["found"] == "signal_other SIGKILL"
    assert cells[0]["latency_ms"] > 0
    assert any("no_cell" in entry for entry in cells)


@LINUX
def test_program_fails_where_a_promise_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status says so, and the table where."""
    monkeypatch.setattr(latency, "LIMIT_MS", -1.0)
    monkeypatch.setattr("sys.argv", ["testing", "--only", "latency", "--kills", "2"])
    assert program.main() == 1
    assert "FAIL detection latency" in capsys.readouterr().out


def test_percentiles_are_values_that_were_measured() -> None:
    """By nearest rank."""
    values = [float(n) for n in range(1, 201)]
    assert (percentile(values, 50), percentile(values, 99), percentile([3.0], 99)) == (100.0, 198.0, 3.0)
