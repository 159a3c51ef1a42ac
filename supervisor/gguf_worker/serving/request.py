"""An id for each HTTP request, in its log lines and in its answer."""

from __future__ import annotations

import logging
import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gguf_worker.logs import bound, log_event

REQUEST_ID = "x-request-id"
_ACCEPTED = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")

log = logging.getLogger(__name__)


class WithRequestId:
    """ASGI middleware: takes the client's `X-Request-Id`, or makes one, binds it as `request_id` for whatever
    is logged on the way, and answers with it. Each answer is logged at level debug."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = accepted(Headers(scope=scope).get(REQUEST_ID))
        began = time.monotonic()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        with bound(request_id=request_id):
            await self._app(scope, receive, send_with_id)
            took_ms = 1000 * (time.monotonic() - began)
            log_event(
                log,
                logging.DEBUG,
                "http_request",
                f"{scope['method']} {scope['path']}: {status} in {took_ms:.1f} ms",
                method=scope["method"],
                path=scope["path"],
                status=status,
                duration_ms=round(took_ms, 3),
            )


def accepted(offered: str | None) -> str:
    """The id that a client offers, where it can do no harm in a log; else a new one."""
    return offered if offered is not None and _ACCEPTED.fullmatch(offered) else uuid.uuid4().hex
