"""Every test here must leave nothing behind: no child, no descriptor, no thread, no shared memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gguf_worker.testing import Baseline


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with Baseline():
        yield
