"""Somebody on the relay's subjects who sends what is there once more, and out of order."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats
from nats.aio.msg import Msg

LINKS = "gguf-worker.v1.relay.*.*.*"
"""What links send, in both directions."""


@asynccontextmanager
async def mischief(url: str, *, late_by: int) -> AsyncIterator[list[int]]:
    """While this is open, each message of every link is sent again when `late_by` others have passed: a
    duplicate where that is 0, else an old one among new ones. Yields a list of one count of them."""
    count = [0]
    kept: deque[Msg] = deque()
    client = await nats.connect(url, no_echo=True, allow_reconnect=False)

    async def repeat(message: Msg) -> None:
        kept.append(message)
        if len(kept) > late_by:
            old = kept.popleft()
            count[0] += 1
            await client.publish(old.subject, old.data, headers=old.headers)

    try:
        await client.subscribe(LINKS, cb=repeat)
        await client.flush()
        yield count
    finally:
        await client.close()
