"""Every bench as a program: the same options, a table or JSON, and evidence."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import anyio

from gguf_worker.testing.report import circumstances, write
from kit.report import Report, as_json, table


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What every bench is told."""

    model: Path
    """The demo model."""
    rounds: int
    is_tiny: bool
    """Only to see that it runs: tiny models, one round, few tokens."""
    given: argparse.Namespace
    """With what the bench added itself."""


Measure = Callable[[Options], Awaitable[Report]]


def run(
    name: str,
    doc: str | None,
    measure: Measure,
    *,
    rounds: int = 5,
    add: Callable[[argparse.ArgumentParser], object] = lambda _: None,
) -> None:
    """Parses the command line, measures, shows, and ends the process: 0, or 1 where the report has
    problems. Options of other benches are ignored, because `make bench` gives all of them the same ones."""
    parser = argparse.ArgumentParser(
        prog=f"bench/{name}.py", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="the demo model (`python tests/smollm2.py` prints its path)")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"that count ({rounds})")
    parser.add_argument(
        "--tiny", action="store_true", help="only to see that it runs: the figures mean nothing"
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument("--evidence", type=Path, metavar="DIR", help="also write DIR/bench-NAME.json")
    add(parser)
    given, _ = parser.parse_known_args()
    options = Options(
        model=given.model, rounds=1 if given.tiny else given.rounds, is_tiny=given.tiny, given=given
    )
    try:
        sys.exit(anyio.run(_run, name, options, measure))
    except KeyboardInterrupt:
        sys.exit(130)


async def _run(name: str, options: Options, measure: Measure) -> int:
    report = await measure(options)
    given = options.given
    if given.json or given.evidence:
        content = {**await circumstances(_command(name, options)), **as_json(report)}
        if given.evidence:
            write(given.evidence / f"bench-{name}.json", content)
    print(json.dumps(content, indent=2, ensure_ascii=False) if given.json else table(report))
    return 1 if report.problems else 0


def _command(name: str, options: Options) -> str:
    """As a reader would type it: the model's place is nobody's business."""
    arguments = [word if Path(word) != options.model else "MODEL" for word in sys.argv[1:]]
    return " ".join(["PYTHONPATH=tests", "python", f"bench/{name}.py", *_without_evidence(arguments)])


def _without_evidence(arguments: list[str]) -> list[str]:
    if "--evidence" not in arguments:
        return arguments
    place = arguments.index("--evidence")
    return arguments[:place] + arguments[place + 2 :]


def sha256_of(path: Path) -> str:
    """In hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
