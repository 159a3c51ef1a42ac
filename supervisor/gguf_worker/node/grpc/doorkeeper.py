"""Lets calls in: those with a token, where tokens are asked for."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio

from gguf_worker.errors import RequestError
from gguf_worker.logs import log_event
from gguf_worker.node.grpc.statuses import abort
from gguf_worker.node.grpc.tokens import Tokens

log = logging.getLogger(__name__)

AUTHORIZATION: Final = "authorization"
_OPEN: Final = "/grpc.health.v1.Health/"
"""Whoever balances or restarts nodes asks for their health, and knows no token."""


class Doorkeeper(grpc.aio.ServerInterceptor):
    """Refuses each call without a token that is known, before anything of it is read."""

    def __init__(self, tokens: Tokens | None) -> None:
        self._tokens = tokens
        self._refusal: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(refuse)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """See gRPC."""
        is_open = str(handler_call_details.method).startswith(_OPEN)
        if is_open or self.account(handler_call_details.invocation_metadata) is not None:
            return await continuation(handler_call_details)
        return self._refusal

    def account(self, metadata: Any) -> str | None:
        """Whose call this is, empty where nobody pays; None where it is not let in."""
        if self._tokens is None:
            return ""
        presented = [value for key, value in metadata or () if key == AUTHORIZATION]
        return self._tokens.account(presented[0]) if len(presented) == 1 else None


async def refuse(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """The whole of a call without a token that is known."""
    log_event(
        log,
        logging.WARNING,
        "grpc_unauthenticated",
        f"a call from {context.peer()} was refused: its token is missing or unknown",
        peer=context.peer(),
    )
    await abort(
        context,
        RequestError(
            "the token is missing or unknown (send the metadata `authorization: Bearer TOKEN` with a token "
            "that this node was given)",
            code="unauthenticated",
        ),
    )
