"""What lies in a folder of evidence."""

from __future__ import annotations

from pathlib import Path

import pytest

from evidences import folder_in, run_record
from kit.evidence.folder import folders, without_places


def test_newest_run_of_a_command_counts(tmp_path: Path) -> None:
    """In the place of the first one."""
    folder = folder_in(tmp_path)
    assert folder.runs() == {}
    folder.keep(run_record("bench-a", status=1, last_lines=("it broke",)))
    folder.keep(run_record("bench-b"))
    folder.keep(run_record("bench-a"))
    assert {name: run.status for name, run in folder.runs().items()} == {"bench-a": 0, "bench-b": 0}
    assert list(folder.runs()) == ["bench-a", "bench-b"]
    assert [path.name for path in folder.path.iterdir()] == ["runs.json"]


def test_files_are_found_by_their_kind(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    folder.write("bench-b.json", {"b": 1})
    folder.write("bench-a.json", {"a": 1})
    folder.write("faults-mesh.json", {})
    assert folder.files("bench-*.json") == {"bench-a": {"a": 1}, "bench-b": {"b": 1}}
    assert (folder.read("bench-a.json"), folder.read("nothing.json")) == ({"a": 1}, {})


def test_folders_are_days_newest_first(tmp_path: Path) -> None:
    for name in ("2026-03-01", "2026-11-02", "notes", "2026-03"):
        (tmp_path / name).mkdir()
    assert [folder.name for folder in folders(tmp_path)] == ["2026-11-02", "2026-03-01"]
    assert folders(tmp_path / "nowhere") == []


def test_files_that_name_a_place_are_found(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    folder.write("bench-a.json", {"command": f"python {tmp_path}/x.py"})
    folder.write("README.md", "Nothing.")
    assert folder.naming([tmp_path]) == ["bench-a.json"]
    assert folder.naming([tmp_path / "elsewhere"]) == []


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ('File "/opt/some/where/x.py", line 3', 'File "…/x.py", line 3'),
        ("error: /srv/models/ is not there", "error: …/models is not there"),
        ("bench/decode.py: 3 / 4 at 1/2", "bench/decode.py: 3 / 4 at 1/2"),
        ("GET http://127.0.0.1:8080/v1/models", "GET http://127.0.0.1:8080/v1/models"),
    ],
)
def test_lines_are_kept_without_places(line: str, kept: str) -> None:
    assert without_places(line) == kept
