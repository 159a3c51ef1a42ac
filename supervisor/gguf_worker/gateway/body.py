"""The body of a request: one JSON object of bounded size, read within bounded time."""

from __future__ import annotations

import json
from typing import NoReturn

import anyio
from starlette.types import Receive, Scope

from gguf_worker.gateway.errors import ApiError


class ClientGone(Exception):
    """Raised where a client has left before it has said what it wants."""


async def read_object(scope: Scope, receive: Receive, *, limit: int, timeout_s: float) -> dict[str, object]:
    """Raises ApiError where it is too large (413), too slow (408), or no JSON object."""
    _check_announced(scope, limit)
    body = bytearray()
    with anyio.move_on_after(timeout_s) as patience:
        while True:
            part, has_more = await _part(receive)
            body += part
            if len(body) > limit:
                raise _too_large(limit)
            if not has_more:
                break
    if patience.cancelled_caught:
        raise ApiError(f"the body did not come within {timeout_s:g} s", status=408, code="body_timeout")
    return parse_object(bytes(body))


async def skip_before_close(scope: Scope, receive: Receive, *, limit: int, timeout_s: float) -> None:
    """Reads a body that nobody wants where the connection ends with the answer: a socket that is closed with
    something unread in it is reset, and the client may lose the answer. Elsewhere the server throws away what
    comes behind the answer. Gives up where the body is too large or too slow."""
    if not _ends_with_answer(scope):
        return
    with anyio.move_on_after(timeout_s):
        has_more = True
        while has_more and limit >= 0:
            part, has_more = await _part(receive)
            limit -= len(part)


async def _part(receive: Receive) -> tuple[bytes, bool]:
    """What came next of a body, and whether more comes. Raises ClientGone."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message.get("body", b""), message.get("more_body", False)


def parse_object(body: bytes) -> dict[str, object]:
    """Reads one JSON object. Raises ApiError."""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise ApiError("the body is not UTF-8", code="invalid_json") from None
    except ValueError as error:
        raise ApiError(f"the body is not JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise ApiError("the body is nested too deeply", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError("the body is not a JSON object", code="invalid_json")
    return value


def _check_announced(scope: Scope, limit: int) -> None:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise _too_large(limit)


def _ends_with_answer(scope: Scope) -> bool:
    wishes = [value.lower() for name, value in scope["headers"] if name == b"connection"]
    return scope["http_version"] != "1.1" or any(b"close" in wish for wish in wishes)


def _too_large(limit: int) -> ApiError:
    return ApiError(f"the body has more than {limit} bytes", status=413, code="request_too_large")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
