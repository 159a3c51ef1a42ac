"""HTTP as plain as it gets: one request, one connection, whatever the server is."""

from __future__ import annotations

import http.client
import json
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import SocketStream

Address = tuple[str, int]
TIMEOUT_S = 30.0


async def get(address: Address, path: str) -> str:
    """The body of a page. Raises OSError where there is none."""
    return await anyio.to_thread.run_sync(_get, address, path)


async def get_json(address: Address, path: str) -> dict[str, Any]:
    """A page that is one JSON object."""
    found: dict[str, Any] = json.loads(await get(address, path))
    return found


async def wait_for(address: Address, path: str, status: int) -> None:
    """Returns when a page is answered with this status."""
    while await anyio.to_thread.run_sync(_status, address, path) != status:  # noqa: ASYNC110 - there is no event
        await anyio.sleep(0.1)


async def post(address: Address, path: str, body: object, *, request_id: str = "") -> SocketStream:
    """A connection on which the whole request has been sent and nothing was read. Leaving it is leaving the
    request."""
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\nConnection: close\r\n"
    if request_id:
        head += f"X-Request-Id: {request_id}\r\n"
    stream = await anyio.connect_tcp(*address)
    try:
        await stream.send(head.encode() + b"\r\n" + raw)
    except BaseException:
        await anyio.aclose_forcefully(stream)
        raise
    return stream


def _get(address: Address, path: str) -> str:
    connection = http.client.HTTPConnection(*address, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def _status(address: Address, path: str) -> int:
    connection = http.client.HTTPConnection(*address, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        return connection.getresponse().status
    finally:
        connection.close()
