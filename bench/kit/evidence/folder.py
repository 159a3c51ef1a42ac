"""What lies in a folder of evidence."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RUNS = "runs.json"
SETTING = "setting.json"
FOLDER_NAME = re.compile(r"\d{4}-\d\d-\d\d")

_PLACE = re.compile(r"(?<![\w/.:])(?:/[\w.@+~-]+){2,}/?")
"""An absolute path of at least two names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One command that was run to its end."""

    name: str
    command: str
    """As a reader would type it, with MODEL and FOLDER in place of what they are here."""
    status: int
    """Its exit status; negative is the signal that ended it."""
    seconds: float
    date: str
    """When it began, ISO 8601 in UTC."""
    load_before: float
    """Processes that computed or wanted to, on average over the minute before (`getloadavg`)."""
    source: str
    """The commit of this repository; with `changed` where files differed from it. Empty where not known."""
    last_lines: tuple[str, ...] = ()
    """Of its output, where it failed."""


class Folder:
    """Reads the files of one day, and keeps the list of commands."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        return self.path.name

    def read(self, name: str) -> dict[str, Any]:
        """One file's content; empty where it is not there."""
        path = self.path / name
        return json.loads(path.read_text()) if path.exists() else {}

    def files(self, pattern: str) -> dict[str, dict[str, Any]]:
        """Contents by name without `.json`, in the order of the names."""
        return {path.stem: json.loads(path.read_text()) for path in sorted(self.path.glob(pattern))}

    def runs(self) -> dict[str, RunRecord]:
        """By name, in the order in which they were first run."""
        runs = self.read(RUNS).get("runs", [])
        return {run["name"]: RunRecord(**{**run, "last_lines": tuple(run["last_lines"])}) for run in runs}

    def keep(self, run: RunRecord) -> None:
        """The newest run of a name is the one that counts. The file changes whole or not at all."""
        runs = {**self.runs(), run.name: run}
        self.write(RUNS, {"runs": [asdict(run) for run in runs.values()]})

    def write(self, name: str, content: Mapping[str, Any] | str) -> None:
        """A text, or JSON that a reader can compare line by line."""
        self.path.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content, indent=2, ensure_ascii=False)
        beside = self.path / f".{name}.partial"
        beside.write_text(text.rstrip("\n") + "\n")
        beside.replace(self.path / name)

    def naming(self, places: Iterable[Path]) -> list[str]:
        """Files that name one of these places of this machine: none should."""
        named = [str(place) for place in places]
        texts = {path.name: path.read_text() for path in sorted(self.path.iterdir()) if path.is_file()}
        return [name for name, text in texts.items() if any(place in text for place in named)]


def folders(root: Path) -> list[Folder]:
    """All of them, newest first."""
    if not root.is_dir():
        return []
    names = sorted((path.name for path in root.iterdir() if FOLDER_NAME.fullmatch(path.name)), reverse=True)
    return [Folder(root / name) for name in names]


def without_places(line: str) -> str:
    """A line of output without paths of this machine: what is kept of each is its last name."""
    return _PLACE.sub(lambda found: "…/" + found[0].rstrip("/").rsplit("/", 1)[-1], line)
