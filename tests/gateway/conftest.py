"""Every test here must leave nothing behind: no child, no descriptor, no thread, no shared memory."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from gguf_worker.testing import Baseline
from grpc_begun import begin_grpc

THREAD_OF_A_LIBRARY = re.compile(r"thread \d+ ")
"""Python gives its own threads names."""
SETTLE_S = 10.0
"""gRPC closes descriptors in threads of its own, after a server has ended."""


@pytest.fixture(scope="session")
def grpc() -> None:
    """For tests over nodes. gRPC opens descriptors for the whole process the first time it is used, and
    starts threads of its own whenever it is busy; no test shall be blamed."""
    begin_grpc()


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    uses_grpc = "grpc" in request.fixturenames
    before = Baseline()
    before.__enter__()
    yield
    left = _left_since(before, uses_grpc=uses_grpc)
    until = time.monotonic() + SETTLE_S
    while uses_grpc and left and time.monotonic() < until:
        time.sleep(0.01)  # gRPC's threads tell nobody when they are done
        left = _left_since(before, uses_grpc=uses_grpc)
    assert left == []


def _left_since(before: Baseline, *, uses_grpc: bool) -> list[str]:
    return [one for one in before.left() if not (uses_grpc and THREAD_OF_A_LIBRARY.fullmatch(one))]
