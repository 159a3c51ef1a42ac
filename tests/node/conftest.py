"""Every test here must leave nothing behind: no child, no descriptor, no thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gguf_worker.testing import Baseline


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with Baseline():
        yield


@pytest.fixture(params=["gguf", "toy"])
def kind(request: pytest.FixtureRequest) -> str:
    """Which backends a node has: whatever is tested of streams holds for both."""
    return str(request.param)
