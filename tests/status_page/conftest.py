"""Every test here must leave no child and no descriptor behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gguf_worker.status_page import board
from gguf_worker.testing import Baseline


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with Baseline():
        yield


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change is looked at without a wait for others."""
    monkeypatch.setattr(board, "SETTLE_S", 0.0)
