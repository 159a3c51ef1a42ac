"""Every bench as a reader meets it first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUESTIONS = sorted((ROOT / "bench").glob("*.py"))
OPTIONS = ("--rounds", "--tiny", "--json", "--evidence")


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda path: path.stem)
def test_help_asks_the_question(question: Path) -> None:
    """Its first line is one, and every bench takes the options that `make bench` may give."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *sys.path[1:]])}
    said = subprocess.run(
        [sys.executable, question, "--help"], capture_output=True, text=True, env=environment, timeout=100
    )
    assert (said.returncode, said.stderr) == (0, "")
    usage, first, *_ = said.stdout.split("\n\n")
    assert usage.startswith(f"usage: bench/{question.name} ")
    assert "?" in first
    assert "\n" not in first
    assert [option for option in OPTIONS if option not in said.stdout] == []
