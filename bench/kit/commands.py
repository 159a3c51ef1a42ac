"""`gguf-worker` with HTTP, in a process of its own, as a user starts it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gguf_worker.testing.mesh.node import COMMAND
from gguf_worker.testing.process import LineProcess
from kit.http import Address, wait_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One that has a model and can be asked."""

    address: Address
    pid: int


@asynccontextmanager
async def command(*words: str) -> AsyncIterator[Command]:
    """`serve` or `gateway`, with whatever follows. Raises EOFError, with its last words, where it does not
    start."""
    async with LineProcess([*COMMAND, *words, "--http", "127.0.0.1:0", "--json"]) as process:
        line = json.loads(await process.wait_line(lambda text: '"http_listening"' in text))
        host, _, port = line["address"].rpartition(":")
        address = (host, int(port))
        await wait_for(address, "/health", 200)
        yield Command(address=address, pid=process.pid)
