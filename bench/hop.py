"""What does a hop to another node cost, beside what gRPC itself costs?

A node in a process of its own serves a stage that computes nothing: it gives the rows back that it gets.
The same rows go through the whole path (RemoteStage, stream, StageService) and through a bare gRPC echo, in
turns, so that a machine that slows down slows both. One decode row and one prefill of 512 rows of a model
with n_embd 4096, in float32.

    make bench
    python bench/hop.py [--rounds 20] [--tiny] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import anyio

from gguf_worker._memory import keep_large_blocks
from gguf_worker._schema import Buffer
from gguf_worker.node.grpc import GrpcClientOptions, GrpcDialer, GrpcOptions, grpc_server
from gguf_worker.node.grpc.limits import channel_arguments, server_arguments
from gguf_worker.node.ledger import Use
from gguf_worker.node.remote_stage import RemoteStage
from gguf_worker.node.stage_service import StageService
from gguf_worker.protocol.messages import Output, Result, Sampling
from gguf_worker.testing.process import LineProcess
from gguf_worker.work import Work
from gguf_worker_v1 import common_pb2, registration_pb2

N_EMBD = 4096
ROW_BYTES = 4 * N_EMBD
PREFILL_ROWS = 512
N_CTX = 1 << 30
BARE = "/bench.Bare/Echo"
LISTENING = "listening"


# ---- a stage that computes nothing --------------------------------------------------------------


class Mirror:
    """Gives the rows back that it gets; a backend and its session in one."""

    position = 0
    kv_cells = 0

    def describe(self) -> common_pb2.Stage:
        return common_pb2.Stage(
            identity=common_pb2.Identity(artifact="00" * 32, start=1, end=2, recipe={"boundary": "f32"}),
            model=common_pb2.Model(architecture="mirror", n_layer=3, n_embd=N_EMBD, n_vocab=2),
            capacity=common_pb2.Capacity(
                max_batch=PREFILL_ROWS, n_ctx=N_CTX, prefill_chunk=PREFILL_ROWS, row_bytes=ROW_BYTES
            ),
            state="ready",
        )

    async def wait_for_change(self, seen: common_pb2.Stage) -> None:  # noqa: ARG002 - it never changes
        await anyio.sleep_forever()

    async def open(self, identity: common_pb2.Identity, sampling: Sampling, work: Work) -> Mirror:  # noqa: ARG002
        return Mirror()

    async def forward(
        self, *, position: int, tokens: Sequence[int] | None, hidden: Buffer | None, output: Output
    ) -> Result:
        assert hidden is not None
        assert tokens is None
        rows = memoryview(hidden).nbytes // ROW_BYTES
        self.position = position + rows
        return Result(
            session=1,
            length=self.position,
            kv_cells=0,
            output=output,
            queue_us=0,
            compute_us=0,
            batch_rows=rows,
            rows=rows,
            columns=N_EMBD,
            hidden=hidden,
        )

    async def close(self) -> int:
        return 0


class NoLedger:
    """Counts nothing; a ledger and its entry in one. What a real one costs is another question."""

    async def open(self, work: Work, *, artifact: str, layers: tuple[int, int]) -> NoLedger:  # noqa: ARG002
        return self

    async def count(self, use: Use) -> None: ...

    async def close(self, finish_reason: str) -> None: ...


# ---- the node -----------------------------------------------------------------------------------


async def serve() -> None:
    """Both servers in one process; prints their addresses and runs until it is ended."""
    import grpc.aio

    options = GrpcOptions()
    mirror: Any = Mirror()
    service = StageService([mirror], NoLedger(), "mirror")
    bare = grpc.aio.server(options=server_arguments(options.limits))
    handler: Any = grpc.stream_stream_rpc_method_handler(_echo)
    service_name, method = BARE[1:].split("/")
    bare.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service_name, {method: handler})])
    port = bare.add_insecure_port("127.0.0.1:0")
    async with grpc_server(
        service, describe=registration_pb2.Registration, backends=[mirror], options=options
    ) as server:
        await bare.start()
        print(f"{LISTENING} {server.addresses[0]} 127.0.0.1:{port}", flush=True)
        await anyio.sleep_forever()


async def _echo(_: Any, context: Any) -> None:
    import grpc.aio

    while (frame := await context.read()) is not grpc.aio.EOF:
        await context.write(frame)


def other_process() -> LineProcess:
    """The node and the bare echo; its first line has their addresses."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return LineProcess([sys.executable, __file__, "--serve"], environment=environment)


# ---- measuring ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What goes through at a time, and how often in a round."""

    name: str
    rows: int
    times: int

    @property
    def n_bytes(self) -> int:
        return self.rows * ROW_BYTES


@dataclass(slots=True)
class Times:
    """Seconds of each round trip."""

    bare: list[float]
    hop: list[float]


async def measure(loads: Sequence[Load], rounds: int) -> dict[str, Times]:
    """Round trips of each load, both ways in turns; a first round warms up and is thrown away."""
    import grpc.aio

    found = {load.name: Times([], []) for load in loads}
    limits = GrpcClientOptions().limits
    async with other_process() as process, GrpcDialer() as dialer, AsyncExitStack() as stack:
        _, node, bare = (await process.wait_line(lambda line: line.startswith(LISTENING))).split()
        channel = await stack.enter_async_context(
            grpc.aio.insecure_channel(bare, channel_arguments(limits, ""))
        )
        stage = RemoteStage(Mirror().describe(), "mirror", lambda: dialer.connect(node, timeout_s=10))
        session = await stage.open_session(work=Work())
        call: Any = channel.stream_stream(BARE)()

        async def hop(rows: bytes) -> None:
            result = await session.forward_piece(hidden=rows, output=Output.HIDDEN)
            assert result.rows * ROW_BYTES == len(rows)

        async def echo(rows: bytes) -> None:
            await call.write(rows)
            assert len(await call.read()) == len(rows)

        for number in range(rounds + 1):
            for load in loads:
                rows = os.urandom(load.n_bytes)
                of_bare = [await timed(echo, rows) for _ in range(load.times)]
                of_hop = [await timed(hop, rows) for _ in range(load.times)]
                if number:
                    found[load.name].bare += of_bare
                    found[load.name].hop += of_hop
        call.cancel()
        await session.close("stop")
    return found


async def timed(work: Callable[[bytes], Awaitable[None]], rows: bytes) -> float:
    began = time.perf_counter()
    await work(rows)
    return time.perf_counter() - began


def summary(load: Load, times: Times) -> dict[str, float | str]:
    """Medians; throughput counts the rows once, though they go both ways."""
    bare, hop = statistics.median(times.bare), statistics.median(times.hop)
    return {
        "load": load.name,
        "bytes": load.n_bytes,
        "bare_ms": 1e3 * bare,
        "hop_ms": 1e3 * hop,
        "added_ms": 1e3 * (hop - bare),
        "ratio": hop / bare,
        "bare_mib_s": load.n_bytes / bare / 2**20,
        "hop_mib_s": load.n_bytes / hop / 2**20,
    }


def show(found: Sequence[dict[str, Any]]) -> None:
    for one in found:
        print(
            f"{one['load']:8} {one['bytes'] / 1024:8.0f} KiB   bare {one['bare_ms']:7.3f} ms "
            f"{one['bare_mib_s']:7.1f} MiB/s   hop {one['hop_ms']:7.3f} ms {one['hop_mib_s']:7.1f} MiB/s   "
            f"added {one['added_ms']:+7.3f} ms   {one['ratio']:5.2f} x"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="not used: no model is loaded")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tiny", action="store_true", help="only to see that it runs")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options, _ = parser.parse_known_args()  # `make bench` gives the others' as well
    keep_large_blocks()  # as `gguf-worker serve` does
    if options.serve:
        anyio.run(serve)
        return
    times = (5, 1) if options.tiny else (100, 10)
    loads = [
        Load(name="decode", rows=1, times=times[0]),
        Load(name="prefill", rows=PREFILL_ROWS, times=times[1]),
    ]
    measured = anyio.run(measure, loads, 1 if options.tiny else options.rounds)
    found = [summary(load, measured[load.name]) for load in loads]
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        show(found)


if __name__ == "__main__":
    main()
