"""Pages that show evidence without being evidence: tables in docs/performance.md, and the list of folders."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from kit.evidence.folder import Folder
from kit.evidence.tables import bench_tables, ratio_table, table

_TABLE = re.compile(r"<!-- evidence: ([\w-]+) -->\n.*?<!-- end of evidence -->", re.DOTALL)
RATIOS = "ratios"
"""Stands for the ratios of all benches; any other name is a file."""


def with_tables(text: str, folder: Folder | None) -> str:
    """The page with what a folder holds between its markers, each of which names a file without `.json`."""
    return _TABLE.sub(lambda found: _between(found[1], folder), text)


def _between(name: str, folder: Folder | None) -> str:
    lines = _lines(name, folder) or ["Not measured yet."]
    return "\n".join([f"<!-- evidence: {name} -->", *lines, "<!-- end of evidence -->"])


def _lines(name: str, folder: Folder | None) -> list[str]:
    if folder is None:
        return []
    if name == RATIOS:
        benches = folder.files("bench-*.json")
        return ratio_table(benches) if benches else []
    content = folder.read(f"{name}.json")
    if not content:
        return []
    source = f"[{folder.name}](evidence/{folder.name}/README.md), `{content['command']}`:"
    return [source, "", *bench_tables(content)]


def rewrite(page: Path, folder: Folder | None) -> bool:
    """Puts a folder's tables into a page; whether that changed it."""
    before = page.read_text()
    after = with_tables(before, folder)
    if after != before:
        page.write_text(after)
    return after != before


def index(found: Sequence[Folder]) -> str:
    """Of all folders, which come newest first."""
    rows = []
    for folder in found:
        runs = folder.runs().values()
        failed = [run.name for run in runs if run.status]
        files = ", ".join(f"[{name}]({folder.name}/{name}.json)" for name in folder.files("*-*.json"))
        ended = ", ".join(failed) if failed else ("none" if runs else "not recorded")
        rows.append((f"[{folder.name}]({folder.name}/README.md)", ended, files))
    lines = [
        "# Evidence",
        "",
        "What was measured, by day. `make evidence` makes a folder, its page and this list; `make faults`",
        "and `make faults-mesh` write into the folder of the day.",
        "",
        *table(("day", "commands that failed", "files"), rows),
    ]
    return "\n".join(lines) + "\n"
