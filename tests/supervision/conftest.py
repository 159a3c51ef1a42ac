"""Every test here must leave nothing behind: no child, no descriptor, no thread, no shared memory."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest

from gguf_worker.testing import Baseline


@pytest.fixture(scope="session", autouse=True)
def _libuv_is_initialised() -> None:
    """libuv opens one pipe for the whole process the first time it is used; no test shall be blamed for
    it."""
    anyio.run(anyio.sleep, 0, backend_options={"use_uvloop": True})


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with Baseline():
        yield
