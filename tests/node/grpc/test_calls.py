"""What is not a stream: Describe, Tokenize, Detokenize, health, reflection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from gguf_worker.errors import RequestError
from gguf_worker.node.grpc import GrpcClientOptions, GrpcLimits, GrpcOptions, Tokens
from gguf_worker.node.grpc.health import MAX_WATCHERS
from gguf_worker.node.transport import TransportClosed
from gguf_worker_v1 import common_pb2, node_pb2, stage_pb2
from node.grpc.rigs import TIMEOUT_S, TOKEN, StateBackend, echoed, node

pytestmark = pytest.mark.anyio

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
IMPATIENT = GrpcOptions(limits=GrpcLimits(call_timeout_s=0.1), grace_s=0.0)


def tokenize(text: bytes, artifact: str = "") -> node_pb2.TokenizeRequest:
    return node_pb2.TokenizeRequest(artifact=artifact, tokenize=stage_pb2.Tokenize(text=text))


# ---- calls --------------------------------------------------------------------------------------


async def test_describe_says_what_the_node_registers() -> None:
    async with node(backends=[StateBackend("ready"), StateBackend("starting")]) as running:
        registration = await running.dialer.describe(running.address)
        assert registration.node == "echo"
        assert [stage.state for stage in registration.stages] == ["ready", "starting"]


async def test_describe_for_another_major_version_is_refused_with_both_numbers() -> None:
    async with node() as running, grpc.aio.insecure_channel(running.address) as channel:
        describe: Any = channel.unary_unary(
            "/gguf_worker.v1.Node/Describe",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=node_pb2.DescribeResponse.FromString,
        )
        newer = node_pb2.DescribeRequest(version=common_pb2.Version(major=1, minor=99))
        assert (await describe(newer)).registration.node == "echo"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await describe(node_pb2.DescribeRequest(version=common_pb2.Version(major=7, minor=3)))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "version 7.3" in (caught.value.details() or "")
        assert "1.0" in (caught.value.details() or "")


async def test_text_to_tokens_and_back() -> None:
    async with node() as running:
        tokenized = await running.dialer.tokenize(running.address, tokenize(b"abc"))
        assert list(tokenized.tokens) == [97, 98, 99]
        request = node_pb2.DetokenizeRequest(detokenize=stage_pb2.Detokenize(tokens=[97, 98]))
        assert (await running.dialer.detokenize(running.address, request)).text == b"ab"


async def test_a_refusal_comes_with_its_code_and_fields() -> None:
    async with node() as running:
        with pytest.raises(RequestError, match="no stage here") as caught:
            await running.dialer.tokenize(running.address, tokenize(b"abc", "unknown"))
        assert (caught.value.code, caught.value.fields) == ("not_owned", {"artifact": "unknown"})


async def test_a_call_that_takes_too_long_ends_on_both_sides() -> None:
    async with node(options=IMPATIENT) as running:
        with pytest.raises(RequestError, match=r"no answer within 0.1 s") as caught:
            await running.dialer.tokenize(running.address, tokenize(b"abc", "slow"))
        assert caught.value.code == "timeout"
    async with node() as running:
        with pytest.raises(TransportClosed) as ended:
            await running.dialer.tokenize(running.address, tokenize(b"abc", "slow"), timeout_s=0.1)
        assert ended.value.code == "deadline"


async def test_a_message_that_is_none_is_refused() -> None:
    async with node() as running, grpc.aio.insecure_channel(running.address) as channel:
        call: Any = channel.unary_unary("/gguf_worker.v1.Node/Tokenize")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"\xff\xff\xff")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "the request is no TokenizeRequest" in (caught.value.details() or "")
        assert await echoed(await running.connect())


# ---- health -------------------------------------------------------------------------------------


@asynccontextmanager
async def health_of(address: str) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(address) as channel:
        yield health_pb2_grpc.HealthStub(channel)


@pytest.mark.parametrize("service", ["", "gguf_worker.v1.Node"])
async def test_health_follows_the_stages_and_draining(service: str) -> None:
    """One ready stage is enough; no token is asked for."""
    stages = [StateBackend("starting"), StateBackend("failed")]
    options = GrpcOptions(tokens=Tokens.of({TOKEN: ""}), grace_s=0.0)
    request = health_pb2.HealthCheckRequest(service=service)
    async with (
        node(options=options, client=GrpcClientOptions(token=TOKEN), backends=stages) as running,
        health_of(running.address) as health,
    ):
        watch = health.Watch(request)

        async def next_status() -> int:
            with anyio.fail_after(TIMEOUT_S):
                status: int = (await watch.read()).status
            assert (await health.Check(request)).status == status
            return status

        assert await next_status() == NOT_SERVING
        stages[0].become("ready")
        assert await next_status() == SERVING
        stages[0].become("failed")
        assert await next_status() == NOT_SERVING
        stages[1].become("ready")
        assert await next_status() == SERVING
        await running.server.drain()
        assert await next_status() == NOT_SERVING
        stages[0].become("ready")
        assert (await health.Check(request)).status == NOT_SERVING
        watch.cancel()


async def test_health_of_a_service_that_there_is_none() -> None:
    async with node() as running, health_of(running.address) as health:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.Check(health_pb2.HealthCheckRequest(service="another"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_watchers_are_limited_because_they_need_no_token() -> None:
    async with node() as running, health_of(running.address) as health:
        watches = [health.Watch(health_pb2.HealthCheckRequest()) for _ in range(MAX_WATCHERS)]
        for watch in watches:
            assert (await watch.read()).status == SERVING
        one_more = health.Watch(health_pb2.HealthCheckRequest())
        assert await one_more.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == SERVING
        assert await echoed(await running.connect())
        for watch in watches:
            watch.cancel()


# ---- reflection ---------------------------------------------------------------------------------


async def test_reflection_lists_the_services_and_describes_them() -> None:
    """What tools such as grpcurl need to call a node without its .proto files."""
    async with node() as running, grpc.aio.insecure_channel(running.address) as channel:
        untyped: Any = channel
        call: Any = reflection_pb2_grpc.ServerReflectionStub(untyped).ServerReflectionInfo()  # type: ignore[operator]
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = await call.read()
        assert {service.name for service in listed.list_services_response.service} == {
            "gguf_worker.v1.Node",
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
        }
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol="gguf_worker.v1.Node"))
        described = await call.read()
        files = described.file_descriptor_response.file_descriptor_proto
        assert any(b"gguf_worker.v1" in file and b"Detokenize" in file for file in files)
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
