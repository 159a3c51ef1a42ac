"""The pages that are made of evidence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evidences import bench_content, folder_in, run_record, setting_content
from kit.evidence.pages import index, rewrite, with_tables
from kit.evidence.parts import Command
from kit.evidence.readme import page
from kit.evidence.tables import bench_tables, fact, ratio_table

COMMANDS = [
    Command(name=name, part="bench", arguments=(), shown=f"python {name}") for name in ("bench-x", "bench-y")
]
MARKED = "Before.\n\n<!-- evidence: bench-x -->\nold\n<!-- end of evidence -->\n\nAfter.\n"


def test_table_of_a_bench() -> None:
    """Figures, what is wanted of them, and what is short enough to be read."""
    assert bench_tables(bench_content()) == [
        "| decode (tokens/s) | median | lowest | highest | wanted |",
        "|---|---:|---:|---:|---|",
        "| ours | 100 | 99 | 101 |  |",
        "| a \\| b | 100 | 100 | 100 |  |",
        "| *ours / a \\| b* | 1.000 | 0.990 | 1.010 | ≥ 0.97 (floor 0.95): met |",
        "| *a \\| b / ours* | 1.000 | 0.990 | 1.010 |  |",
        "",
        "- same tokens: yes",
        "- a note",
        "",
    ]


def test_problems_are_in_the_table() -> None:
    content = {**bench_content(), "problems": ["other tokens"]}
    assert bench_tables(content)[-1] == "- **Not as it should be:** other tokens"


def test_ratios_are_those_that_shall_reach_something() -> None:
    assert ratio_table({"bench-x": bench_content()})[2:] == [
        "| x | decode | ours / a \\| b | 1.000 | 0.990 to 1.010 | ≥ 0.97 (floor 0.95): met |"
    ]
    assert ratio_table({}) == ["No ratio was measured."]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, "yes"),
        (12345.6, "12,346"),
        (["a", 0.5], "a, 0.5"),
        ({"kills": 3, "lost": [], "name": "x"}, "kills 3, name x"),
        (None, "None"),
    ],
)
def test_facts_are_written_as_a_reader_would(value: object, shown: str) -> None:
    assert fact(value) == shown


# ---- the page of a folder -----------------------------------------------------------------------


def test_page_has_commands_tables_and_circumstances(tmp_path: Path) -> None:
    folder = folder_in(tmp_path)
    folder.write("bench-x.json", bench_content())
    folder.write("setting.json", setting_content())
    folder.keep(run_record("bench-x"))
    text = page(folder, COMMANDS)
    assert text.startswith("# Evidence of 2026-03-01\n")
    row = "| `python bench/x.py MODEL` | 0 | 62 s | 0.25 | 2026-03-01T12:00:00+00:00 | `0123456789ab` |"
    assert f"{row} [bench-x.json](bench-x.json) |" in text
    assert "## How fast?\n" in text
    assert f"| 2 | 2:4 | `{'d' * 64}` |" in text
    assert "| peers: flags | `A=ON` `B=OFF` |" in text
    assert "| backend and driver | GPU0 (gpu): driver 1 |" in text
    assert "- The machine is virtual" in text


def test_page_says_what_was_not_run_and_why(tmp_path: Path) -> None:
    """A command that failed has its last words; one that was left out says how it is run."""
    folder = folder_in(tmp_path)
    folder.write("setting.json", setting_content())
    folder.keep(run_record("bench-x", status=3, last_lines=("it broke", "badly")))
    lines = page(folder, COMMANDS).splitlines()
    begin = lines.index("## What was not run, and why")
    assert lines[begin + 2 : begin + 9] == [
        "- `bench-y`: left out; `python bench-y` runs it",
        "- `bench-x`: ended with exit status 3. Its last lines:",
        "",
        "  ```",
        "  it broke",
        "  badly",
        "  ```",
    ]
    assert "- several machines: there was one; what a real network adds was not measured" in lines
    assert "- macOS: this is Linux" in lines
    assert not any(line.startswith("- a GPU") for line in lines)


def test_page_of_files_whose_commands_were_not_recorded(tmp_path: Path) -> None:
    """They say themselves what made them, and on what."""
    folder = folder_in(tmp_path)
    folder.write("bench-x.json", bench_content())
    text = page(folder, COMMANDS)
    assert "| `python bench/x.py MODEL` | not recorded |" in text
    assert "| memory | 1,024 bytes |" in text
    assert "- `bench-x`: left out" not in text
    assert "- a GPU: the library that is installed here has no device but the CPU" in text


def test_page_of_nothing(tmp_path: Path) -> None:
    assert "- `bench-x`: left out; `python bench-x` runs it" in page(folder_in(tmp_path), COMMANDS)


# ---- pages that show it -------------------------------------------------------------------------


def test_tables_go_between_their_markers(tmp_path: Path) -> None:
    """And nothing else changes, however often it is done."""
    folder = folder_in(tmp_path)
    folder.write("bench-x.json", bench_content())
    text = with_tables(MARKED, folder)
    assert text.startswith(
        "Before.\n\n<!-- evidence: bench-x -->\n[2026-03-01](evidence/2026-03-01/README.md), `"
    )
    assert text.endswith("\n<!-- end of evidence -->\n\nAfter.\n")
    assert "| ours | 100 | 99 | 101 |  |" in text
    assert "old" not in text
    assert with_tables(text, folder) == text


def test_what_was_not_measured_is_said(tmp_path: Path) -> None:
    expected = MARKED.replace("old", "Not measured yet.")
    assert with_tables(MARKED, None) == with_tables(MARKED, folder_in(tmp_path)) == expected


def test_page_is_written_only_where_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "performance.md"
    path.write_text(MARKED.replace("bench-x", "ratios"))
    folder = folder_in(tmp_path)
    folder.write("bench-x.json", bench_content())
    assert rewrite(path, folder)
    assert "| x | decode | ours" in path.read_text()
    assert not rewrite(path, folder)


def test_list_of_folders(tmp_path: Path) -> None:
    newer, older = folder_in(tmp_path, "2026-03-02"), folder_in(tmp_path)
    newer.write("bench-x.json", bench_content())
    newer.keep(run_record("bench-x", status=1))
    older.write("faults-mesh.json", json.loads("{}"))
    assert index([newer, older]).splitlines()[-2:] == [
        "| [2026-03-02](2026-03-02/README.md) | bench-x | [bench-x](2026-03-02/bench-x.json) |",
        "| [2026-03-01](2026-03-01/README.md) | not recorded | [faults-mesh](2026-03-01/faults-mesh.json) |",
    ]
