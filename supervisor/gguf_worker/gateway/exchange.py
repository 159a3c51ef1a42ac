"""One request and its answer: who asks, what, and that nothing is done any more once the client has left."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from gguf_worker._tasks import plain_task_group
from gguf_worker.gateway.body import ClientGone, read_object, skip_before_close
from gguf_worker.gateway.errors import CLIENT_GONE, ApiError, api_error
from gguf_worker.gateway.gateway import Gateway
from gguf_worker.gateway.reply import Reply
from gguf_worker.logs import bound_ids, log_event
from gguf_worker.work import Work, new_id

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request that was read, and where its answer goes."""

    gateway: Gateway
    body: dict[str, object]
    reply: Reply
    work: Work
    """Its ids, who pays, and until when somebody waits."""


Handle = Callable[[Exchange], Awaitable[None]]


class Endpoint:
    """An ASGI application that answers POST requests with JSON bodies. Those that `generate` are refused
    before they are read where there is no room for any."""

    def __init__(self, gateway: Gateway, handle: Handle, *, generates: bool = False) -> None:
        self._gateway = gateway
        self._handle = handle
        self._generates = generates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = Reply(send)
        try:
            await self._answer(scope, receive, reply)
        except ClientGone:
            """Nobody is there to be told."""
        except Exception as error:
            await self._fail(reply, error)
        if not reply.is_complete:
            log_event(log, logging.INFO, "client_gone", f"{scope['path']}: the client left before its answer")
        self._gateway.figures.answered(scope["path"], reply.status if reply.is_complete else CLIENT_GONE)

    async def _answer(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        gateway, settings = self._gateway, self._gateway.settings
        headers = Headers(scope=scope)
        limit, timeout_s = settings.max_body_bytes, settings.body_timeout_s
        try:
            account = gateway.account_of(headers.get("authorization"))
            if self._generates:
                gateway.check_room()
        except ApiError:
            await skip_before_close(scope, receive, limit=limit, timeout_s=timeout_s)
            raise
        body = await read_object(scope, receive, limit=limit, timeout_s=timeout_s)
        work = Work(
            request_id=str(bound_ids().get("request_id") or new_id()),
            account=account,
            deadline=time.monotonic() + settings.request_timeout_s,
            traceparent=headers.get("traceparent", ""),
        )
        exchange = Exchange(gateway=gateway, body=body, reply=reply, work=work)
        with gateway.at_work():
            await _while_present(receive, lambda: self._handle(exchange))

    async def _fail(self, reply: Reply, error: Exception) -> None:
        told = api_error(error)
        if told.status == 500:
            trace = "".join(traceback.format_exception(error))
            log_event(log, logging.ERROR, "request_failed", f"a request failed: {error!r}", exception=trace)
        await reply.error(told)


async def _while_present(receive: Receive, what: Callable[[], Awaitable[None]]) -> None:
    """Does it, and cancels it when the client leaves."""
    async with plain_task_group() as tasks:

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        await what()
        tasks.cancel_scope.cancel()
