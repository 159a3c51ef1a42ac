"""Runs everything whose outcome is evidence, and makes the pages of it: `make evidence`.

    python -m kit.evidence MODEL --folder docs/evidence/YYYY-MM-DD           what has not been run yet
    python -m kit.evidence MODEL --folder docs/evidence/YYYY-MM-DD bench     these parts or commands, again
    python -m kit.evidence --pages --folder docs/evidence/YYYY-MM-DD         only the pages, of what there is

Exit status 0 where every command that was run ended with 0, and no file names a place on this machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import deque
from datetime import UTC, datetime
from pathlib import Path

from gguf_worker.testing.process import dying_with_parent
from kit.evidence.folder import FOLDER_NAME, Folder, RunRecord, folders, without_places
from kit.evidence.pages import index, rewrite
from kit.evidence.parts import PARTS, ROOT, Command, chosen, commands, line_of
from kit.evidence.readme import page

EVIDENCE = ROOT / "docs/evidence"
PERFORMANCE = ROOT / "docs/performance.md"
LAST_LINES = 12
"""Kept of a command that fails."""


def main() -> int:
    options = _options()
    folder = Folder(options.folder)
    if options.pages:
        make_pages(folder)
        return 0
    try:
        wanted = chosen(commands(options.model, folder, is_tiny=options.tiny), options.parts, _done(folder))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    failed = [command.name for command in wanted if not _run(command.name, options, folder)]
    make_pages(folder)
    named = folder.naming(_places(options.model))
    if failed:
        print(f"failed: {', '.join(failed)}; {folder.path / 'README.md'} says how", file=sys.stderr)
    if named:
        print(f"error: these name a place on this machine: {', '.join(named)}", file=sys.stderr)
    return 1 if failed or named else 0


def _done(folder: Folder) -> set[str]:
    return {run.name for run in folder.runs().values() if run.status == 0}


def _run(name: str, options: argparse.Namespace, folder: Folder) -> bool:
    """Whether it ended well. Made anew, because one command may be made of what another one wrote."""
    made = {command.name: command for command in commands(options.model, folder, is_tiny=options.tiny)}
    run = execute(made[name])
    folder.keep(run)
    make_pages(folder)
    return run.status == 0


def execute(command: Command) -> RunRecord:
    """Runs it, and shows what it prints. It dies with this process."""
    print(f"\n== {command.shown}", flush=True)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    load_before, began = os.getloadavg()[0], time.monotonic()
    last: deque[str] = deque(maxlen=LAST_LINES)
    with subprocess.Popen(
        dying_with_parent(line_of(command)),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last.append(without_places(line.rstrip()))
    return RunRecord(
        name=command.name,
        command=command.shown,
        status=process.returncode,
        seconds=round(time.monotonic() - began, 1),
        date=date,
        load_before=round(load_before, 2),
        source=_source(),
        last_lines=tuple(last) if process.returncode else (),
    )


def _source() -> str:
    """The commit, and whether anything but evidence differs from it. Empty without git."""
    commit = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--", ".", ":!docs")
    return f"{commit}, changed" if commit and changed else commit


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


# ---- pages --------------------------------------------------------------------------------------


def make_pages(folder: Folder) -> None:
    """The page of a folder and the list of all that lie beside it; where they are those of the repository,
    also what docs/performance.md shows of the newest one with benches."""
    folder.write("README.md", page(folder, commands(Path("MODEL"), folder)))
    root = folder.path.parent
    found = folders(root)
    (root / "README.md").write_text(index(found))
    if root.resolve() == EVIDENCE:
        measured = [folder for folder in found if folder.files("bench-*.json")]
        rewrite(PERFORMANCE, measured[0] if measured else None)


def _places(model: Path) -> list[Path]:
    """Of this machine, which nothing may name."""
    return [ROOT, model.resolve().parent, Path(sys.prefix), Path.home()]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m kit.evidence",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, nargs="?", help="the demo model")
    parser.add_argument(
        "parts", nargs="*", help=f"{', '.join(PARTS)}, or a command by its name; without any: what is missing"
    )
    parser.add_argument(
        "--folder", type=Path, required=True, metavar="DIR", help="a dated folder of docs/evidence"
    )
    parser.add_argument("--pages", action="store_true", help="run nothing; make the pages of what there is")
    parser.add_argument("--tiny", action="store_true", help="only to see that it runs")
    options = parser.parse_args()
    if not options.pages and options.model is None:
        parser.error("MODEL is needed, or --pages")
    if not FOLDER_NAME.fullmatch(options.folder.name):
        parser.error(f"--folder {options.folder.name}: a folder of evidence is called by its day, YYYY-MM-DD")
    return options


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)  # what ended before is kept; the next run goes on behind it
