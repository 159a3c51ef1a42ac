"""What does the relay cost, beside what NATS itself costs?

A node in a process of its own gives frames back that it gets: over a link of the relay, and as the answer to
a bare NATS request of the same bytes, in turns, so that a machine that slows down slows both. The server's
maximum payload is raised, so that the bare request is one message however large it is; the relay sends its
usual chunks. No model is loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from nats.aio.msg import Msg

from gguf_worker._memory import keep_large_blocks
from gguf_worker.node.nats import NatsOptions, connect_nats
from gguf_worker.node.relay.dialer import RelayDialer
from gguf_worker.node.relay.listener import relay_listener
from gguf_worker.node.transport import Transport, TransportClosed
from gguf_worker.testing.nats import NatsServer
from gguf_worker.testing.process import LineProcess
from kit import program
from kit.load import Carry, Load, load_section
from kit.program import Options
from kit.report import Report

MAX_PAYLOAD = 64 * 1024 * 1024
BARE = "bench.bare"
NAME = "mirror"
READY = "ready"
SERVE = "--serve"


# ---- the node -----------------------------------------------------------------------------------


class Mirror:
    """Sends every frame back."""

    async def serve(self, transport: Transport, *, account: str = "") -> None:  # noqa: ARG002
        try:
            while True:
                await transport.send(await transport.receive())
        except TransportClosed:
            return


async def serve(url: str) -> None:
    """Both services in one process; says that it is ready and runs until it is ended."""

    async def echo(message: Msg) -> None:
        await message.respond(message.data)

    async with connect_nats(NatsOptions(servers=(url,))) as nats:
        await nats.client.subscribe(BARE, cb=echo)
        async with relay_listener(nats, NAME, Mirror()):
            print(READY, flush=True)
            await anyio.sleep_forever()


def other_process(url: str) -> LineProcess:
    """The node."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return LineProcess([sys.executable, __file__, SERVE, url], environment=environment)


# ---- measuring ----------------------------------------------------------------------------------


@asynccontextmanager
async def ways() -> AsyncIterator[dict[str, Carry]]:
    """Both ways to the other process, open."""
    async with (
        NatsServer(max_payload=MAX_PAYLOAD) as server,
        other_process(server.url) as process,
        connect_nats(NatsOptions(servers=(server.url,))) as nats,
    ):
        await process.wait_line(lambda line: line == READY)
        transport = await RelayDialer(nats).connect(NAME, timeout_s=10)

        async def bare(frame: bytes) -> None:
            answer = await nats.client.request(BARE, frame, timeout=30)
            assert len(answer.data) == len(frame)

        async def relay(frame: bytes) -> None:
            await transport.send(frame)
            assert len(await transport.receive()) == len(frame)

        yield {"bare NATS": bare, "relay": relay}
        await transport.aclose()


async def measure(options: Options) -> Report:
    loads = [
        Load(name="a frame of a decode row", n_bytes=16 * 1024, times=2 if options.is_tiny else 100),
        Load(name="a frame of a prefill", n_bytes=8 * 1024 * 1024, times=1 if options.is_tiny else 4),
    ]
    async with ways() as found:
        sections = [await load_section(load, found, options.rounds) for load in loads]
    return Report(
        question="What does the relay cost, beside what NATS itself costs?",
        sections=tuple(sections),
        settings={"rounds": options.rounds},
    )


if __name__ == "__main__":
    keep_large_blocks()  # as `gguf-worker serve` does
    if sys.argv[1:2] == [SERVE]:
        anyio.run(serve, sys.argv[2])
    else:
        program.run("relay", __doc__, measure, rounds=10)
