"""What docs/operations.md says, compared with what there is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import gguf_worker
from gguf_worker import ExitCause, WorkerState
from gguf_worker.serving.service import Phase

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "operations.md").read_text()
SOURCES = [path.read_text() for path in Path(str(gguf_worker.__file__)).parent.rglob("*.py")]


def test_unit_file_is_valid(tmp_path: Path) -> None:
    """systemd itself finds nothing to say about it."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not here")
    (unit,) = re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)
    executable = tmp_path / "gguf-worker"
    executable.write_text("#!/bin/sh\n")
    executable.chmod(0o755)
    path = tmp_path / "gguf-worker.service"
    path.write_text(unit.replace("/opt/gguf-worker/bin/gguf-worker", str(executable)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", path],
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if path.name in line]
    assert (done.returncode, ours) == (0, [])


def test_every_metric_is_documented() -> None:
    """And none that is not there."""
    named = {name for text in SOURCES for name in re.findall(r'"(gguf_worker_[a-z_]+)"', text)} - {
        "gguf_worker_log_ids"
    }
    documented = {
        re.sub("_(total|info)$", "", name)
        for name in re.findall(r"`(gguf_worker_[a-z_]+)(?:\{[a-z,]+\})?`", PAGE)
    }
    assert documented == named


def test_every_event_is_documented() -> None:
    """And none that is not there."""
    logged = {
        name
        for text in SOURCES
        for name in re.findall(r'(?:log_event\(\s*\w+,|self\._log\()\s*[^"]*?"([a-z_]+)"', text)
    }
    table = PAGE[PAGE.index("| event | level |") :]
    documented = {
        name for row in table.splitlines()[2:] for name in re.findall(r"`([a-z_]+)`", row.split("|")[1])
    }
    assert documented == logged | {"request", "log_dropped"}  # which are made where there is no such call


@pytest.mark.parametrize("names", [Phase, WorkerState, ExitCause])
def test_every_state_and_cause_is_documented(names: type[Phase | WorkerState | ExitCause]) -> None:
    """By the word that programs see."""
    assert [name.value for name in names if f"`{name.value}`" not in PAGE] == []
