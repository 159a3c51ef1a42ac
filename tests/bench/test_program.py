"""Every bench as a program."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kit import program
from kit.program import Options
from kit.report import Report, Section, Side

Run = Callable[..., int]


@pytest.fixture
def run_program(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs one that measures its own options, and gives the exit status."""

    def run(*arguments: str, problems: tuple[str, ...] = ()) -> int:
        async def measure(options: Options) -> Report:
            side = Side(name="rounds", values=(float(options.rounds),))
            section = Section(title=f"n is {options.given.n}", unit="rounds", sides=(side,))
            return Report(question="What?", sections=(section,), problems=problems)

        monkeypatch.setattr("sys.argv", ["bench/what.py", *arguments])
        with pytest.raises(SystemExit) as ended:
            program.run(
                "what", "What?\n\nMore.", measure, rounds=7, add=lambda p: p.add_argument("--n", type=int)
            )
        assert isinstance(ended.value.code, int)
        return ended.value.code

    return run


def test_shows_a_table(run_program: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """With options of its own; those of other benches are ignored."""
    assert run_program("model.gguf", "--n", "3", "--of-another-bench", "1") == 0
    assert capsys.readouterr().out == "n is 3 [rounds]\n  rounds           7   (from 7 to 7)\n"


def test_tiny_is_one_round(run_program: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program("model.gguf", "--tiny", "--rounds", "9") == 0
    assert "  rounds           1 " in capsys.readouterr().out


def test_problems_fail(run_program: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program("model.gguf", problems=("other tokens",)) == 1
    assert "PROBLEM: other tokens" in capsys.readouterr().out


def test_help_begins_with_the_question(run_program: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program("--help") == 0
    assert "\n\nWhat?\n\nMore.\n" in capsys.readouterr().out


def test_evidence_names_no_place(
    run_program: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command is there as a reader would type it, with the machine and the versions."""
    folder, model = tmp_path / "evidence", str(tmp_path / "model.gguf")
    assert run_program(model, "--rounds", "2", "--evidence", str(folder), "--json") == 0
    written = (folder / "bench-what.json").read_text()
    content = json.loads(written)
    assert content["command"] == "PYTHONPATH=tests python bench/what.py MODEL --rounds 2 --json"
    assert content["machine"]["processors"] >= 1
    assert content["sections"][0]["sides"] == [{"name": "rounds", "median": 2.0, "values": [2.0]}]
    assert str(tmp_path) not in written
    assert json.loads(capsys.readouterr().out) == content


def test_digest_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert program.sha256_of(tmp_path / "empty").startswith("e3b0c44298fc1c14")
