"""The real demo model; its tests run with `-m real` only (`make test-real`)."""

from __future__ import annotations

from pathlib import Path

import pytest

import smollm2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.real)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The model file, its sha256 verified."""
    return smollm2.find()


@pytest.fixture(scope="session")
def real_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache folder for all real tests, so that each shard file is written once."""
    return tmp_path_factory.mktemp("cache")
