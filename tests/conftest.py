"""What every test may use: toy models, and a tally of the logits that were compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import toy
from tally import Tally

_TALLY = pytest.StashKey[Tally]()
_NOTES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TALLY] = Tally()
    config.stash[_NOTES] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints how much was compared, so that a run which compared nothing cannot look like a success."""
    tally, notes = config.stash[_TALLY], config.stash[_NOTES]
    if tally.compared or notes:
        terminalreporter.section("equality and figures")
        terminalreporter.line(
            f"logits compared bit for bit: {tally.compared:,}, different: {tally.different:,}"
        )
        for note in notes:
            terminalreporter.line(note)


@pytest.fixture
def anyio_backend() -> str:
    """anyio's tests run on asyncio, which the supervisor is written for."""
    return "asyncio"


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """Compares logits and counts them for the summary."""
    return request.config.stash[_TALLY]


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Adds a line with a measured figure to the summary."""
    return request.config.stash[_NOTES].append


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where this run's toy models are; each is made once."""
    return tmp_path_factory.mktemp("toys")


@pytest.fixture(scope="session")
def build_toy(toy_folder: Path) -> Callable[[str], Path]:
    """Makes the toy model of a kind (a key of `toy.KINDS`) and returns its path."""
    return lambda kind: toy.build(kind, toy_folder)


@pytest.fixture(scope="session")
def build_malformed(toy_folder: Path) -> Callable[[str], Path]:
    """Makes the malformed file of a kind (a key of `toy.MALFORMED`) and returns its path."""
    return lambda kind: toy.build_malformed(kind, toy_folder)


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    """A cache folder of this test's own."""
    return tmp_path / "cache"
