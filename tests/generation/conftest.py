"""Every test here must leave no child and no descriptor behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import leaks


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with leaks.nothing_left():
        yield
