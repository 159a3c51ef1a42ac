"""What the pages say, compared with what there is."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

import gguf_worker
from gguf_worker import ExitCause
from gguf_worker.cli.app import app
from gguf_worker.node.grpc.statuses import STATUSES

ROOT = Path(__file__).parent.parent
PACKAGE = Path(str(gguf_worker.__file__)).parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = [path.read_text() for path in PACKAGE.rglob("*.py") if "testing" not in path.parts]

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def test_every_code_is_in_troubleshooting() -> None:
    """And none that is nowhere."""
    given = re.compile(r'\b(?:default_code(?:: ClassVar\[str\])? = |code=)"([a-z_]+)"')
    codes = {code for text in SOURCES for code in given.findall(text)} | set(STATUSES) | set(ExitCause)
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    tables = page[: page.index("## No error, and yet")].splitlines()
    first = [row.split("|")[1] for row in tables if row.startswith("|")]
    documented = {code for cell in first for code in re.findall(r"`([a-z_]+)`", cell)}
    words = {word for text in SOURCES for word in re.findall(r'"([a-z_]+)"', text)}
    assert (codes - documented, documented - codes - words) == (set(), set())


@pages
def test_every_command_is_one(page: Path) -> None:
    """Each line of `gguf-worker …` names a command, and options that it has."""
    unknown = [line for line in commands(page.read_text()) if not is_command(line)]
    assert unknown == []


@pages
def test_every_place_that_is_named_is_there(page: Path) -> None:
    named = re.findall(
        r"`((?:docs|examples|bench|scripts|tests|supervisor|shard_engine|worker_c)/[\w./-]*)`",
        page.read_text(),
    )
    assert [place for place in named if not (ROOT / place).exists()] == []


@pages
def test_every_goal_of_make_is_there(page: Path) -> None:
    goals = re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"`(?:\w+=\S+ )?make ([a-z-]+)", page.read_text())) - set(goals) == set()


def commands(text: str) -> Iterator[str]:
    """Command lines of gguf-worker in blocks, put together where they go over several lines, without what is
    said about them; and those in a sentence."""
    for block in re.findall(r"```\w*\n(.*?)```", text, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if found := re.match(r"(?:\w+=\S+ )*(?:\S*/)?gguf-worker (.*)", line.strip()):
                yield re.split(r"\s{2,}(?!-)|\s#", found[1])[0]
    yield from re.findall(r"`gguf-worker ([^`…]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def is_command(line: str) -> bool:
    """Whether the command line can be meant."""
    command = typer.main.get_command(app)
    words = shlex.split(line)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        found = command.commands.get(words.pop(0))
        if found is None:
            return False
        command = found
    known = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    given = {word.partition("=")[0] for word in words if re.fullmatch(r"--?[a-z][\w-]*(=.*)?", word)}
    return given <= known | {"--help"}
