"""What does a hop to another node cost, beside what gRPC itself costs?

A node in a process of its own serves a stage that computes nothing: it gives the rows back that it gets.
The same rows go through the whole path (RemoteStage, stream, StageService) and through a bare gRPC echo, in
turns, so that a machine that slows down slows both. One decode row and one prefill of 512 rows of a model
with n_embd 4096, in float32. No model is loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
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
from kit import program
from kit.load import Carry, Load, load_section
from kit.program import Options
from kit.report import Report

N_EMBD = 4096
ROW_BYTES = 4 * N_EMBD
PREFILL_ROWS = 512
N_CTX = 1 << 30
BARE = "/bench.Bare/Echo"
LISTENING = "listening"
SERVE = "--serve"


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
    return LineProcess([sys.executable, __file__, SERVE], environment=environment)


# ---- measuring ----------------------------------------------------------------------------------


@asynccontextmanager
async def ways() -> AsyncIterator[dict[str, Carry]]:
    """Both ways to the other process, open."""
    import grpc.aio

    async with other_process() as process, GrpcDialer() as dialer, AsyncExitStack() as stack:
        _, node, bare = (await process.wait_line(lambda line: line.startswith(LISTENING))).split()
        limits = GrpcClientOptions().limits
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

        yield {"bare gRPC": echo, "hop": hop}
        call.cancel()
        await session.close("stop")


async def measure(options: Options) -> Report:
    times = (5, 1) if options.is_tiny else (100, 10)
    loads = [
        Load(name="a decode row", n_bytes=ROW_BYTES, times=times[0]),
        Load(name=f"a prefill of {PREFILL_ROWS} rows", n_bytes=PREFILL_ROWS * ROW_BYTES, times=times[1]),
    ]
    async with ways() as found:
        sections = [await load_section(load, found, options.rounds) for load in loads]
    return Report(
        question="What does a hop to another node cost, beside what gRPC itself costs?",
        sections=tuple(sections),
        settings={"rounds": options.rounds, "row_bytes": ROW_BYTES},
    )


if __name__ == "__main__":
    keep_large_blocks()  # as `gguf-worker serve` does
    if sys.argv[1:] == [SERVE]:
        anyio.run(serve)
    else:
        program.run("hop", __doc__, measure, rounds=20)
