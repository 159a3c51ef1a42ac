"""Nodes in this process, over a tracker in memory; every test must leave nothing behind."""

from __future__ import annotations

import pytest

from grpc_begun import begin_grpc


@pytest.fixture(scope="session", autouse=True)
def _grpc_is_initialised() -> None:
    """gRPC starts a thread for the whole process the first time it is used; no test shall be blamed."""
    begin_grpc()
