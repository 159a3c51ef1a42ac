"""Every test here must leave nothing behind: no descriptor, no thread, no task."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import anyio
import pytest

from gguf_worker.testing import Baseline
from node.grpc.rigs import Authority, echoed, node

PATIENCE_S: Final = 5.0


@pytest.fixture(scope="session", autouse=True)
def _grpc_is_initialised() -> None:
    """gRPC and libuv open something for the whole process the first time they are used; no test shall be
    blamed for it."""

    async def once() -> None:
        async with node() as running:
            assert await echoed(await running.connect())

    for use_uvloop in (False, True):
        anyio.run(once, backend_options={"use_uvloop": use_uvloop})


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    baseline = Baseline()
    with baseline:
        yield
        ends = time.monotonic() + PATIENCE_S
        while baseline.left() and time.monotonic() < ends:
            time.sleep(0.01)  # gRPC ends its own threads in the background, and tells nobody


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Issues certificates for this test."""
    return Authority(tmp_path)
