"""What the tests of the command line share."""

from __future__ import annotations

from pathlib import Path

import pytest

from commandline import CommandLine


@pytest.fixture
def gguf_worker(cache_dir: Path) -> CommandLine:
    """Runs `gguf-worker` in a process of its own."""
    return CommandLine(cache_dir)
