"""A node as a process of its own: `gguf-worker serve`, with its log."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import psutil

from gguf_worker.testing.process import LineProcess

COMMAND = (sys.executable, "-m", "gguf_worker.cli")
READY_S = 120.0
"""How long a node may take to load its shard and to be registered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """A node that is to be started."""

    name: str
    model: str
    layers: tuple[int, int]
    tracker: str
    """URL of the NATS server."""
    folder: Path
    """For its ledger."""
    is_dialled: bool = True
    """Whether it listens for gRPC."""
    is_relayed: bool = False
    certificates: tuple[Path, ...] = ()
    options: tuple[str, ...] = ()
    """More of `serve`."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def ledger(self) -> Path:
        """Where its receipts are."""
        return self.folder / f"{self.name}.sqlite"

    def command(self) -> list[str]:
        """What starts it."""
        start, end = self.layers
        words = [*COMMAND, "serve", self.model, "--layers", f"{start}:{end}", "--json", "--node", self.name]
        words += ["--tracker", self.tracker, "--ledger", str(self.ledger), "--http", "127.0.0.1:0"]
        if self.is_dialled:
            words += ["--listen", "127.0.0.1:0"]
        if self.is_relayed:
            words.append("--relay")
        for certificate in self.certificates:
            words += ["--certificate", str(certificate)]
        return [*words, *self.options]


class NodeProcess(LineProcess):
    """A node; ready when `wait_ready` returned, gone when the `async with` was left."""

    def __init__(self, spec: NodeSpec, *, on_line: Callable[[str], None] = lambda _: None) -> None:
        super().__init__(spec.command(), environment={**os.environ, **spec.environment}, on_line=on_line)
        self.spec = spec

    async def wait_logged(self, event: str, *, after: int = 0) -> dict[str, Any]:
        """The first line of the log with this event, from line `after` on. Raises EOFError."""
        line = await self.wait_line(lambda text: _event(text) == event, after=after)
        found: dict[str, Any] = json.loads(line)
        return found

    async def wait_ready(self) -> None:
        """Returns when its shard is loaded and the tracker was told of the node. Raises TimeoutError, and
        EOFError with its last lines."""
        with anyio.fail_after(READY_S):
            await self.wait_logged("worker_ready")
            await self.wait_logged("registered")

    def kill_worker(self) -> None:
        """SIGKILL for its worker, where there is one now."""
        for child in psutil.Process(self.pid).children():
            child.kill()  # psutil makes sure that the pid is still the same process

    def logged(self, event: str) -> Sequence[dict[str, Any]]:
        """Every line so far with this event."""
        return [json.loads(line) for line in self.lines if _event(line) == event]


def _event(line: str) -> str | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found.get("event") if isinstance(found, dict) else None
