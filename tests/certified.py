"""A certificate that the command line measured, for nodes of the fake model."""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread

from commandline import CommandLine
from served import MODEL


async def certified(gguf_worker: CommandLine, folder: Path, *, cuts: str) -> Path:
    """For the nodes' recipe; the event loop goes on meanwhile."""
    path = folder / "certificate.json"
    measure = ("certify", MODEL, "--engine", "fake", "--cuts", cuts, "--steps", "1", "--prompt", "x")
    done = await anyio.to_thread.run_sync(lambda: gguf_worker(*measure, "--output", path))
    assert done.returncode == 0, done.stderr
    return path
