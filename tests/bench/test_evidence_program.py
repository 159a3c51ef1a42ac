"""`make evidence` as a program, with commands that take no time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kit.evidence import __main__ as program
from kit.evidence.folder import Folder
from kit.evidence.parts import ROOT, Command

Run = Callable[..., int]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "evidence" / "2026-03-01")


@pytest.fixture
def run_program(monkeypatch: pytest.MonkeyPatch, folder: Folder) -> Run:
    """Runs it with one command that ends well and one that does not, and gives the exit status."""

    def commands(model: Path, _: Folder, *, is_tiny: bool = False) -> list[Command]:
        return [
            _python("well", f"print('fine', {is_tiny})"),
            _python("badly", f"import sys; print('{model.resolve()}'); sys.exit('it broke')"),
        ]

    def run(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["kit.evidence", *arguments, "--folder", str(folder.path)])
        return program.main()

    monkeypatch.setattr(program, "commands", commands)
    return run


def _python(name: str, code: str) -> Command:
    return Command(name=name, part="bench", arguments=("-c", code), shown=f"python -c {name}")


def test_runs_what_is_missing_and_keeps_how_it_ended(
    run_program: Run, folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second time only what failed; the page says how it did, without a place on this machine."""
    model = str(tmp_path / "models" / "model.gguf")
    assert run_program(model) == 1
    printed = capsys.readouterr()
    assert "== python -c well\nfine False\n" in printed.out
    assert "failed: badly; " in printed.err
    runs = folder.runs()
    assert (runs["well"].status, runs["well"].last_lines) == (0, ())
    assert (runs["badly"].status, runs["badly"].last_lines) == (1, ("…/model.gguf", "it broke"))
    assert "  it broke" in (folder.path / "README.md").read_text()
    assert "2026-03-01" in (folder.path.parent / "README.md").read_text()
    assert run_program(model) == 1
    assert "python -c well" not in capsys.readouterr().out


def test_what_is_named_is_run_again(run_program: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program("model.gguf", "well", "--tiny") == 0
    assert run_program("model.gguf", "well", "--tiny") == 0
    assert capsys.readouterr().out.count("fine True") == 2
    assert run_program("model.gguf", "tea") == 2
    assert "error: no part or command is called tea" in capsys.readouterr().err


def test_a_place_on_this_machine_is_an_error(
    run_program: Run, folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.write("bench-x.json", {"command": str(ROOT), "date": ""})
    assert run_program("model.gguf", "well") == 1
    assert "error: these name a place on this machine: README.md, bench-x.json" in capsys.readouterr().err


def test_pages_alone_run_nothing(run_program: Run, folder: Folder) -> None:
    folder.path.mkdir(parents=True)
    assert run_program("--pages") == 0
    assert folder.runs() == {}
    assert (folder.path / "README.md").exists()


def test_a_folder_is_called_by_its_day(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["kit.evidence", "model.gguf", "--folder", str(tmp_path / "today")])
    with pytest.raises(SystemExit):
        program.main()
    assert "a folder of evidence is called by its day" in capsys.readouterr().err
