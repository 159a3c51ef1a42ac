"""What does the relay cost, beside what NATS itself costs?

A node in a process of its own gives frames back that it gets: over a link of the relay, and as the answer to
a bare NATS request of the same bytes, in turns, so that a machine that slows down slows both. The server's
maximum payload is raised, so that the bare request is one message however large it is; the relay sends its
usual chunks.

    make bench
    python bench/relay.py [--rounds 10] [--tiny] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import anyio
from nats.aio.msg import Msg

from gguf_worker.node.nats import NatsOptions, connect_nats
from gguf_worker.node.relay.dialer import RelayDialer
from gguf_worker.node.relay.listener import relay_listener
from gguf_worker.node.transport import Transport, TransportClosed
from gguf_worker.testing.nats import NatsServer
from gguf_worker.testing.process import LineProcess

MAX_PAYLOAD = 64 * 1024 * 1024
BARE = "bench.bare"
NAME = "mirror"
READY = "ready"


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
    return LineProcess([sys.executable, __file__, "--serve", url], environment=environment)


# ---- measuring ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A frame there and back, and how often in a round."""

    name: str
    n_bytes: int
    times: int


@dataclass(slots=True)
class Times:
    """Seconds of each round trip."""

    bare: list[float]
    relay: list[float]


async def measure(loads: Sequence[Load], rounds: int) -> dict[str, Times]:
    """Round trips of each load, both ways in turns; a first round warms up and is thrown away."""
    found = {load.name: Times([], []) for load in loads}
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

        for number in range(rounds + 1):
            for load in loads:
                frame = os.urandom(load.n_bytes)
                times = found[load.name] if number else Times([], [])
                await _repeat(bare, frame, load.times, times.bare)
                await _repeat(relay, frame, load.times, times.relay)
        await transport.aclose()
    return found


async def _repeat(
    way: Callable[[bytes], Awaitable[None]], frame: bytes, times: int, seconds: list[float]
) -> None:
    for _ in range(times):
        start = time.perf_counter()
        await way(frame)
        seconds.append(time.perf_counter() - start)


def report(loads: Sequence[Load], found: dict[str, Times]) -> list[dict[str, object]]:
    """Medians in milliseconds, and how many times the bare throughput the relay has."""
    rows: list[dict[str, object]] = []
    for load in loads:
        bare = statistics.median(found[load.name].bare)
        relay = statistics.median(found[load.name].relay)
        rows.append(
            {
                "load": load.name,
                "bytes": load.n_bytes,
                "bare_ms": round(1000 * bare, 3),
                "relay_ms": round(1000 * relay, 3),
                "of_bare": round(bare / relay, 2),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="not used: no model is loaded")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--tiny", action="store_true", help="only to see that it runs")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options, _ = parser.parse_known_args()  # `make bench` gives the others' as well
    if options.serve:
        anyio.run(serve, options.serve)
        return
    loads = [
        Load(name="decode row, 16 KiB", n_bytes=16 * 1024, times=2 if options.tiny else 100),
        Load(name="prefill, 8 MiB", n_bytes=8 * 1024 * 1024, times=1 if options.tiny else 4),
    ]
    rows = report(loads, anyio.run(measure, loads, 1 if options.tiny else options.rounds))
    if options.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(
            f"{row['load']:20} bare {row['bare_ms']:>9} ms   relay {row['relay_ms']:>9} ms   "
            f"{row['of_bare']:>5} of the bare throughput"
        )


if __name__ == "__main__":
    main()
