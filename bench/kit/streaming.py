"""A client of streamed answers (HTTP/1.1, server-sent events): the same for every server, and as light as can
be, because it computes beside what it measures."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import anyio
import h11

PIECE_BYTES = 65536
_DATA = b"data: "
_DONE = b"[DONE]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event, and when it came."""

    at: float
    """Of `time.perf_counter`."""
    content: dict[str, Any]


async def events(port: int, path: str, body: Mapping[str, object]) -> AsyncIterator[Event]:
    """Posts JSON to a server on loopback and gives each event of its answer. Raises RuntimeError where it
    refuses, or ends before its answer does."""
    connection = h11.Connection(h11.CLIENT)
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(_request(connection, path, json.dumps(body).encode()))
        unread = bytearray()
        async with aclosing(_pieces(connection, stream)) as pieces:
            async for piece in pieces:
                at = time.perf_counter()
                unread += piece
                for content in take_events(unread):
                    yield Event(at=at, content=content)


def take_events(unread: bytearray) -> Iterator[dict[str, Any]]:
    """The events that are whole, which are then no longer in `unread`. Comments and the last event are
    none."""
    while (end := unread.find(b"\n\n")) >= 0:
        event = bytes(unread[:end])
        del unread[: end + 2]
        if event.startswith(_DATA) and event[len(_DATA) :] != _DONE:
            yield json.loads(event[len(_DATA) :])


def _request(connection: h11.Connection, path: str, body: bytes) -> bytes:
    headers = [("Host", "127.0.0.1"), ("Content-Type", "application/json"), ("Connection", "close")]
    headers.append(("Content-Length", str(len(body))))
    parts = (
        h11.Request(method="POST", target=path, headers=headers),
        h11.Data(data=body),
        h11.EndOfMessage(),
    )
    return b"".join(connection.send(part) or b"" for part in parts)


async def _pieces(connection: h11.Connection, stream: anyio.abc.ByteStream) -> AsyncGenerator[bytes]:
    status = 200
    refusal = b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await _receive(stream))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            if status == 200:
                yield bytes(event.data)
            else:
                refusal += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            if status != 200:
                raise RuntimeError(f"the server answers {status}: {refusal.decode(errors='replace')}")
            return
        else:
            raise RuntimeError(f"the server ends in the middle of its answer: {event}")


async def _receive(stream: anyio.abc.ByteStream) -> bytes:
    try:
        return await stream.receive(PIECE_BYTES)
    except anyio.EndOfStream:
        return b""
