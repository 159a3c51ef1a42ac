"""The calls that are not streams: Describe, Tokenize, Detokenize."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

import anyio
import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from gguf_worker.errors import GgufWorkerError, RemoteProtocolError, RequestTimeout
from gguf_worker.node import versions
from gguf_worker.node.grpc.statuses import abort
from gguf_worker_v1 import node_pb2, registration_pb2, stage_pb2

_Request = TypeVar("_Request", bound=Message)
_Response = TypeVar("_Response", bound=Message)
_Context = grpc.aio.ServicerContext[Any, Any]


class TextService(Protocol):
    """What knows the vocabularies of a node's stages."""

    async def tokenize(self, request: stage_pb2.Tokenize) -> stage_pb2.Tokenized: ...

    async def detokenize(self, request: stage_pb2.Detokenize) -> stage_pb2.Detokenized: ...


class NodeCalls:
    """Answers them, each within a time."""

    def __init__(
        self, text: TextService, describe: Callable[[], registration_pb2.Registration], timeout_s: float
    ) -> None:
        self._text = text
        self._describe = describe
        self._timeout_s = timeout_s

    def handlers(self) -> Mapping[str, grpc.RpcMethodHandler[Any, Any]]:
        """By the names of the methods."""
        return {
            "Describe": self._handler(self.describe, node_pb2.DescribeRequest),
            "Tokenize": self._handler(self.tokenize, node_pb2.TokenizeRequest),
            "Detokenize": self._handler(self.detokenize, node_pb2.DetokenizeRequest),
        }

    async def describe(self, request: node_pb2.DescribeRequest) -> node_pb2.DescribeResponse:
        versions.check(request.version)
        return node_pb2.DescribeResponse(registration=self._describe())

    async def tokenize(self, request: node_pb2.TokenizeRequest) -> stage_pb2.Tokenized:
        request.tokenize.artifact = request.artifact or request.tokenize.artifact
        return await self._text.tokenize(request.tokenize)

    async def detokenize(self, request: node_pb2.DetokenizeRequest) -> stage_pb2.Detokenized:
        request.detokenize.artifact = request.artifact or request.detokenize.artifact
        return await self._text.detokenize(request.detokenize)

    def _handler(
        self, answer: Callable[[_Request], Awaitable[_Response]], request_type: type[_Request]
    ) -> grpc.RpcMethodHandler[bytes, _Response]:
        async def handle(request: bytes, context: _Context) -> _Response:
            try:
                with anyio.fail_after(self._timeout_s):
                    return await answer(_parsed(request, request_type))
            except GgufWorkerError as error:
                await abort(context, error)
            except TimeoutError:
                await abort(
                    context, RequestTimeout(f"no answer within {self._timeout_s:g} s", retryable=True)
                )

        return grpc.unary_unary_rpc_method_handler(
            handle, response_serializer=lambda response: response.SerializeToString()
        )


def _parsed(request: bytes, request_type: type[_Request]) -> _Request:
    """Not left to gRPC, whose status would call it our defect."""
    try:
        return request_type.FromString(request)
    except DecodeError as error:
        raise RemoteProtocolError(f"the request is no {request_type.__name__}: {error}") from error
