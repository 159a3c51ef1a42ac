"""ggml's RPC servers: how llama.cpp itself divides a model over processes."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import anyio

from gguf_worker.testing.process import LineProcess
from kit import build

ATTEMPTS = 5
"""A free port can be taken by another before the server has it."""
STARTS_WITHIN_S = 60.0


@asynccontextmanager
async def rpc_servers(
    n: int, *, threads: int, environment: Mapping[str, str] | None = None
) -> AsyncIterator[list[str]]:
    """Addresses of `n` servers on loopback, each computing with so many threads. A server has one client at a
    time. `environment` is what is set beside our own. Raises LookupError where they are not built, EOFError
    where one does not start."""
    variables = {**os.environ, "GGML_NO_BACKTRACE": "1", **(environment or {})}
    async with AsyncExitStack() as stack:
        yield [await _start(stack, threads, variables) for _ in range(n)]


async def _start(stack: AsyncExitStack, threads: int, environment: Mapping[str, str]) -> str:
    for attempt in range(ATTEMPTS):
        port = free_port()
        server = LineProcess(command(port, threads), environment=environment)
        await stack.enter_async_context(server)
        try:
            await _until_it_listens(server, port)
        except EOFError:
            if attempt == ATTEMPTS - 1:
                raise
            continue
        return f"127.0.0.1:{port}"
    raise AssertionError("not reached")


def command(port: int, threads: int) -> list[str]:
    """How a server is started; it knows no port 0."""
    return [str(build.rpc_server()), "-H", "127.0.0.1", "-p", str(port), "-t", str(threads)]


def free_port() -> int:
    """One that nobody has at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


async def _until_it_listens(server: LineProcess, port: int) -> None:
    """It says nothing when it listens, so it is asked. Raises EOFError where it ended."""
    with anyio.fail_after(STARTS_WITHIN_S):
        while True:
            try:
                async with await anyio.connect_tcp("127.0.0.1", port):
                    pass
            except OSError:
                await _raise_if_ended(server)
                continue
            # It tells of a client only when it has listened, so this is our own server.
            await server.wait_line(lambda line: line.startswith("Accepted client"))
            return


async def _raise_if_ended(server: LineProcess) -> None:
    """Waits a moment for its end."""
    with anyio.move_on_after(0.02):
        await server.wait()
        raise EOFError("the RPC server ended: " + " / ".join(server.lines[-5:]))
