"""Fixtures that measure variants and keep what was measured for the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from architectures.isolated import OtherProcess
from architectures.measure import Measurement, measure
from architectures.table import Table


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-architectures", action="store_true", help="write docs/architectures.md from what is measured"
    )


@pytest.fixture(scope="session")
def table() -> Table:
    """What was measured in this run so far."""
    return Table()


@pytest.fixture(scope="session")
def write_architectures(request: pytest.FixtureRequest) -> bool:
    """The table is to be written from this run."""
    return bool(request.config.getoption("--write-architectures", default=False))


@pytest.fixture(scope="session")
def other_process() -> Iterator[OtherProcess]:
    """The process in which llama.cpp runs."""
    process = OtherProcess()
    yield process
    process.close()


@pytest.fixture
def model_folder() -> Iterator[Path]:
    """A folder that is gone after the test: hundreds of models would fill a disk."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def measured(other_process: OtherProcess, model_folder: Path, table: Table) -> Callable[[str], Measurement]:
    """Measures a variant and enters it in the table."""

    def run(name: str) -> Measurement:
        table.measurements[name] = measurement = other_process.call(measure, name, model_folder)
        return measurement

    return run
