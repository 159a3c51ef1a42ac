"""A long way: TCP proxies that hold back every byte for some time, in a process of their own.

Its event loop waits in select(2), which takes microseconds: epoll takes milliseconds, and rounds up.
"""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import anyio
from anyio.abc import SocketAttribute, SocketStream

from gguf_worker.testing.process import LineProcess
from gguf_worker.testing.proxy import proxy_to

PIECES_UNDER_WAY = 4096
"""256 MiB: what is under way never holds up what comes behind it."""
PIPELINED_BYTES = 8 * 1024 * 1024
SMALL = b"x" * 64

Address = tuple[str, int]


@asynccontextmanager
async def long_ways(targets: Sequence[Address], delay_s: float) -> AsyncIterator[list[Address]]:
    """An address for each target, whose every byte takes `delay_s` there, and so long back."""
    words = [f"{host}:{port}" for host, port in targets]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "kit.delay", str(delay_s), *words]
    async with LineProcess(command, environment=environment) as process:
        line = await process.wait_line(lambda text: text.startswith("["))
        yield [("127.0.0.1", port) for port in json.loads(line)]


# ---- how well it holds back ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """What a small message, and many bytes at once, take through a long way and back."""

    asked_s: float
    """Twice the delay."""
    small_s: float
    """Median of round trips."""
    pipelined_s: float
    """Of 8 MiB that are all under way at the same time."""


async def accuracy(delay_s: float, *, times: int = 20) -> Accuracy:
    """Measured with an echo in this process."""
    async with (
        _echo() as target,
        long_ways([target], delay_s) as ((host, port),),
        await anyio.connect_tcp(host, port) as stream,
    ):
        await _there_and_back(stream, SMALL)
        small = [await _there_and_back(stream, SMALL) for _ in range(times)]
        many = [await _there_and_back(stream, bytes(PIPELINED_BYTES)) for _ in range(3)]
    return Accuracy(
        asked_s=2 * delay_s, small_s=statistics.median(small), pipelined_s=statistics.median(many)
    )


@asynccontextmanager
async def _echo() -> AsyncIterator[Address]:
    async def answer(stream: SocketStream) -> None:
        async with stream:
            async for piece in stream:
                await stream.send(piece)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        yield "127.0.0.1", listener.extra(SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


async def _there_and_back(stream: SocketStream, message: bytes) -> float:
    began = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream.send, message)
        left = len(message)
        while left:
            left -= len(await stream.receive())
    return time.perf_counter() - began


# ---- the process --------------------------------------------------------------------------------


async def _serve(delay_s: float, targets: Sequence[Address]) -> None:
    async with AsyncExitStack() as stack:
        ports = []
        for host, port in targets:
            proxy = await stack.enter_async_context(proxy_to(host, port, under_way=PIECES_UNDER_WAY))
            proxy.up.delay_s = proxy.down.delay_s = delay_s
            ports.append(proxy.port)
        print(json.dumps(ports), flush=True)
        await anyio.sleep_forever()


def _loop_of_microseconds() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    delay, *words = sys.argv[1:]
    options = {"loop_factory": _loop_of_microseconds}
    anyio.run(_serve, float(delay), [_address(word) for word in words], backend_options=options)
