"""Real stages behind gRPC: the same rows as beside them, and refusals that say so by the standard status."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest

from gguf_worker.errors import RequestError
from gguf_worker.generation.stage import StageSession
from gguf_worker.node import versions
from gguf_worker.node.backend import ModelBackend
from gguf_worker.node.grpc import GrpcClientOptions, GrpcOptions, Tokens
from gguf_worker.node.remote_stage import RemoteStage
from gguf_worker.node.stage_service import StageService
from gguf_worker.node.transport import Transport
from gguf_worker.protocol.messages import Output, Result
from gguf_worker.work import Work
from gguf_worker_v1 import common_pb2, stage_pb2
from node import rigs
from node.grpc.rigs import TIMEOUT_S, TOKEN, Node, ended, node
from node.memory_ledger import MemoryLedger
from node.toy_backend import ToyBackend

pytestmark = pytest.mark.anyio

SECURED = GrpcOptions(tokens=Tokens.of({TOKEN: "acme"}), grace_s=0.0)


@asynccontextmanager
async def serving(
    backends: Sequence[ModelBackend], options: GrpcOptions | None = None
) -> AsyncIterator[Node]:
    """A node that serves these stages over gRPC. Nothing is left of any session at the end."""
    service = StageService(backends, MemoryLedger(), rigs.NODE)
    client = GrpcClientOptions(token=TOKEN)
    async with node(service, options, client, backends) as running:
        yield running
    assert service.open_sessions == 0
    for backend in backends:
        load = await backend.capacity()
        assert (load.sessions, load.kv_cells_used) == (0, 0)


def stages(running: Node) -> list[RemoteStage]:
    return [RemoteStage(backend.describe(), rigs.NODE, running.connect) for backend in running.backends]


async def rows_through(opened: Sequence[StageSession]) -> list[Result]:
    """A prefill and three decode steps."""
    parts = [rigs.TOKENS[:16], *([token] for token in rigs.TOKENS[16:19])]
    return [await rigs.through(opened, part, Output.LOGITS) for part in parts]


async def test_a_chain_over_grpc_gives_the_bits_of_one_in_memory(kind: str) -> None:
    async with rigs.node(kind) as rig, serving(rig.backends) as running:
        sets = []
        for places in (stages(running), [rig.stage(index) for index in range(3)]):
            sessions = [await stage.open_session(work=Work()) for stage in places]
            sets.append([bytes(result.logits or b"") for result in await rows_through(sessions)])
            assert all([await session.close("stop") > 0 for session in sessions])
        assert sets[0] == sets[1]
        assert all(sets[0])
        await rig.ended()


async def test_the_account_of_the_token_pays() -> None:
    backend = ToyBackend(0, 3)
    async with serving([backend], SECURED) as running:
        session = await stages(running)[0].open_session(work=Work(account="somebody else"))
        ledger: MemoryLedger = running.service._ledger
        assert [entry.work.account for entry in ledger.entries] == ["acme"]
        await session.close("stop")


async def test_a_client_that_is_gone_in_the_middle_of_a_forward_frees_its_cells() -> None:
    backend = ToyBackend(0, 3)
    async with serving([backend]) as running:
        backend.gate = anyio.Event()
        session = await stages(running)[0].open_session()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lose, session)
            with anyio.fail_after(TIMEOUT_S):
                await backend.waiting.wait()
                await running.dialer.__aexit__(None, None, None)  # the connection is gone without a word
                while backend.sessions:  # noqa: ASYNC110 - the toy tells nobody
                    await anyio.sleep(0.001)


async def lose(session: StageSession) -> None:
    with pytest.raises(Exception, match="node-a"):
        await session.forward_piece(tokens=[1], output=Output.LOGITS)


# ---- refusals -----------------------------------------------------------------------------------


async def status_after(
    address: str, *frames: bytes
) -> tuple[grpc.StatusCode, str, list[stage_pb2.StageFrame]]:
    """How a stream ends after these frames: the status, its message, and what came before it."""
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.stream_stream("/gguf_worker.v1.Node/Stage")()
        for frame in frames:
            await call.write(frame)
        answers = []
        with anyio.fail_after(TIMEOUT_S):
            try:
                while (answer := await call.read()) is not grpc.aio.EOF:
                    answers.append(stage_pb2.StageFrame.FromString(answer))
            except grpc.aio.AioRpcError:
                pass
            return await call.code(), await call.details() or "", answers


def hello(major: int = versions.MAJOR, minor: int = versions.MINOR) -> bytes:
    version = common_pb2.Version(major=major, minor=minor)
    return stage_pb2.StageFrame(hello=stage_pb2.Hello(version=version)).SerializeToString()


def open_of(change: Callable[[common_pb2.Identity], None]) -> bytes:
    identity = ToyBackend(0, 3).describe().identity
    change(identity)
    return stage_pb2.StageFrame(request=1, open=stage_pb2.Open(identity=identity)).SerializeToString()


def other_artifact(identity: common_pb2.Identity) -> None:
    identity.artifact = "be" * 32


def other_recipe(identity: common_pb2.Identity) -> None:
    identity.recipe["modulus"] = "7"


@pytest.mark.parametrize(
    ("frames", "status", "code", "message"),
    [
        (
            [hello(major=9)],
            grpc.StatusCode.UNIMPLEMENTED,
            "version",
            "9.0 of gguf_worker.v1 and this side 1.",
        ),
        ([b"\xff\xfe garbage"], grpc.StatusCode.INVALID_ARGUMENT, "bad_frame", ""),
        ([hello(), b"\x00" * 100], grpc.StatusCode.INVALID_ARGUMENT, "bad_frame", ""),
        ([open_of(lambda _: None)], grpc.StatusCode.INVALID_ARGUMENT, "bad_frame", "begins with hello"),
        (
            [hello(), open_of(other_artifact)],
            grpc.StatusCode.FAILED_PRECONDITION,
            "identity",
            "the nearest differs in artifact",
        ),
        (
            [hello(), open_of(other_recipe)],
            grpc.StatusCode.FAILED_PRECONDITION,
            "identity",
            "the nearest differs in",
        ),
    ],
    ids=["version", "garbage", "garbage later", "no hello", "artifact", "recipe"],
)
async def test_what_no_node_takes_is_refused_and_other_streams_go_on(
    frames: Sequence[bytes], status: grpc.StatusCode, code: str, message: str
) -> None:
    async with serving([ToyBackend(0, 3)], GrpcOptions(grace_s=0.0)) as running:
        session = await stages(running)[0].open_session()
        before = await session.forward_piece(tokens=[1, 2], output=Output.LOGITS)
        found, details, answers = await status_after(running.address, *frames)
        assert (found, answers[-1].error.code) == (status, code)
        assert message in details
        assert details == answers[-1].error.message
        assert (await session.forward_piece(tokens=[3], output=Output.LOGITS)).length == before.length + 1
        await session.close("stop")


async def test_a_frame_over_the_limit_ends_its_session_only() -> None:
    async with serving([ToyBackend(0, 3)], GrpcOptions(grace_s=0.0)) as running:
        session = await stages(running)[0].open_session()
        found, details, _ = await status_after(running.address, hello(), bytes(70 * 1024 * 1024))
        assert found is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than max" in details
        assert (await session.forward_piece(tokens=[3], output=Output.LOGITS)).length == 1
        await session.close("stop")


async def test_the_dialer_hears_of_another_identity_as_that() -> None:
    async with serving([ToyBackend(0, 3)]) as running:
        described = running.backends[0].describe()
        described.identity.recipe["modulus"] = "7"
        stranger = RemoteStage(described, rigs.NODE, running.connect)
        with pytest.raises(RequestError, match="differs in") as caught:
            await stranger.open_session()
        assert caught.value.code == "identity"


async def test_a_client_of_another_version_hears_both_numbers() -> None:
    async with serving([ToyBackend(0, 3)]) as running:
        stream: Transport = await running.connect()
        await stream.send(hello(major=2))
        error = await ended(stream)
        assert error.code == "version"
        assert re.search(r"version 2\.0 .* this side 1\.0", error.message)
