"""Where the worker's executable is looked for."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

import gguf_worker
from gguf_worker.errors import ExecutableNotFound
from gguf_worker.process.executable import ENVIRONMENT_VARIABLE, EXECUTABLE_NAME, find_executable


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An executable in the second folder of the package's path, and nothing else."""
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr(metadata, "files", lambda _name: [])
    monkeypatch.setattr(gguf_worker, "__path__", [str(tmp_path / "sources"), str(tmp_path / "built")])
    return program(tmp_path / "built" / "_bin" / EXECUTABLE_NAME)


def test_executable_of_the_package_is_found_over_its_whole_path(installed: Path) -> None:
    """An editable install has its sources and its executable in two places."""
    assert find_executable() == installed


def test_executable_of_an_editable_install_is_found_by_its_record(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the package's path is the source tree alone, the installer's record says where it is."""
    installed.unlink()
    recorded = program(tmp_path / "site-packages" / "gguf_worker" / "_bin" / EXECUTABLE_NAME)
    entry = metadata.PackagePath("gguf_worker", "_bin", EXECUTABLE_NAME)
    entry.dist = metadata.PathDistribution(tmp_path / "site-packages" / "gguf_worker.dist-info")
    monkeypatch.setattr(metadata, "files", lambda _name: [entry])
    assert find_executable() == recorded


def test_executable_of_the_environment_outranks_the_package(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable chooses another build."""
    other = program(tmp_path / "other")
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(other))
    assert find_executable() == other != installed


def test_executable_of_the_settings_outranks_the_environment(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the caller says comes first."""
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(installed))
    chosen = program(tmp_path / "chosen")
    assert find_executable(chosen) == chosen


def test_executable_that_is_nowhere_says_how_to_get_one(installed: Path) -> None:
    """The error names the places and the remedy."""
    installed.unlink()
    with pytest.raises(ExecutableNotFound, match="pip install") as caught:
        find_executable()
    assert str(installed) in caught.value.fields["searched"]


def test_executable_that_cannot_be_executed_is_refused(installed: Path) -> None:
    """A file without permission to execute is not taken for one."""
    installed.chmod(0o644)
    with pytest.raises(ExecutableNotFound, match=r"WorkerSettings\.executable"):
        find_executable(installed)
