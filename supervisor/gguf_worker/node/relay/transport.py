"""A link on two NATS subjects."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

import anyio
from nats import errors
from nats.aio.msg import Msg

from gguf_worker._schema import Buffer
from gguf_worker.errors import GgufWorkerError
from gguf_worker.logs import log_event
from gguf_worker.node.nats import Nats
from gguf_worker.node.relay.chunk import HEADER
from gguf_worker.node.relay.ending import Ending
from gguf_worker.node.relay.link import Link, LinkLimits
from gguf_worker.node.transport import TransportClosed

logger = logging.getLogger(__name__)

CLOSE_S = 2.0
"""How long closing may take, over and above the link's own lingering."""
TICK_S = 0.02
"""How long the task of a link that is busy sleeps at most: less than an acknowledgement waits, so that it
need not be woken for each."""
_NO_RESPONDERS = "503"


class RelayTransport:
    """Implements Transport. It has a task of its own, for what is due without anything having happened, from
    `start` to `aclose`."""

    def __init__(
        self,
        nats: Nats,
        link: Link,
        *,
        sends_to: str,
        receives_from: str,
        peer: str,
        limits: LinkLimits,
        when_closed: Callable[[], Awaitable[None]],
    ) -> None:
        self._nats = nats
        self._link = link
        self._sends_to = sends_to
        self._receives_from = receives_from
        self._limits = limits
        self._when_closed = when_closed
        self._carrying = False
        self._planned = math.inf
        self._is_busy = False
        self._wake = asyncio.Event()
        self._readable = asyncio.Event()
        self._flushed = asyncio.Event()
        self._watch = ExitStack()
        self._task: asyncio.Task[None] | None = None
        self.peer = peer

    def __repr__(self) -> str:
        ended = self._link.ended
        return f"<RelayTransport {self.peer} {'open' if ended is None else ended.code}>"

    @property
    def max_frame_bytes(self) -> int:
        return self._limits.max_frame_bytes

    def start(self) -> None:
        """From now on it acts by itself, and must be closed."""
        self._watch.enter_context(self._nats.watching(self._see_connection))
        self._task = asyncio.create_task(self._run(), name=f"relay {self.peer}")

    async def send(self, frame: Buffer) -> None:
        if (size := memoryview(frame).nbytes) > self.max_frame_bytes:
            raise TransportClosed(
                f"a frame of {size} bytes; {self.peer} takes {self.max_frame_bytes} at most",
                code="too_large",
                fields={"bytes": str(size), "most": str(self.max_frame_bytes)},
            )
        await self._wait_flushed()  # of a frame whose sender was cancelled
        self._link.offer(frame if isinstance(frame, bytes) else bytes(memoryview(frame).cast("B")))
        await self._carry()
        await self._wait_flushed()

    async def receive(self) -> bytes:
        while True:
            now = time.monotonic()
            if (frame := self._link.take(now)) is not None:
                if self._link.due() <= now:
                    self._wake.set()  # no await may follow: who is cancelled in it would lose the frame
                return frame
            if (ended := self._link.ended) is not None:
                raise ended.error()
            self._readable.clear()
            await self._readable.wait()

    async def aclose(self, error: GgufWorkerError | None = None) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        self._link.finish(Ending.of(error, otherwise="the peer closed the link"), time.monotonic())
        if not self._nats.is_connected:
            self._link.abandon(Ending.of(error, otherwise="the link was closed"))
        self._wake.set()
        with anyio.move_on_after(CLOSE_S, shield=True):
            await asyncio.wait((task,))
        task.cancel()
        self._link.abandon(Ending.of(error, otherwise="the link was closed"))
        self._watch.close()
        self._look()
        with anyio.CancelScope(shield=True):
            await asyncio.wait((task,))
            await self._when_closed()

    async def deliver(self, message: Msg) -> None:
        """Takes a message from the subject that this end receives from."""
        now = time.monotonic()
        if is_no_responders(message):
            self._link.nobody_listens(now)
        else:
            self._link.receive(message.data, now)
            self._is_busy = True
        await self._carry()

    # ---- what happens by itself -----------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._carry()
            while self._link.ended is None:
                await self._sleep()
                await self._carry()
        except Exception:
            logger.exception("the relay link to %s failed", self.peer)
            self._link.abandon(Ending(code="lost", message="the link failed; the log says why"))
        self._look()
        ended = self._link.ended
        if ended is not None and ended.code == "lost":
            log_event(
                logger,
                logging.WARNING,
                "relay_link_lost",
                f"the relay link to {self.peer} is lost: {ended.message}",
                peer=self.peer,
            )

    async def _sleep(self) -> None:
        """Until something is due, or was changed by something that happened."""
        now = time.monotonic()
        due = self._link.due() if self._may_carry else self._link.expires()
        if self._is_busy:
            due, self._is_busy = min(due, now + TICK_S), False
        self._planned = due
        self._wake.clear()
        try:
            async with asyncio.timeout(max(0.0, due - now)):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _carry(self) -> None:
        """Publishes whatever the link wants to say now. One task at a time does it, and says what others
        add."""
        if self._may_carry:
            self._carrying = True
            try:
                await self._publish()
            except errors.Error as error:
                # The connection ended, or another server takes smaller messages: it is sent again in time.
                logger.debug("a message to %s was not published: %s", self.peer, error)
            finally:
                self._carrying = False
                self._look()  # also where the sender was cancelled: the link's own task then goes on
        else:
            self._link.expire(time.monotonic())
            self._look()

    @property
    def _may_carry(self) -> bool:
        return self._nats.is_connected and not self._carrying

    async def _publish(self) -> None:
        publish, next_message = self._nats.client.publish, self._link.next_message
        while self._nats.is_connected and (message := next_message(time.monotonic(), self._chunk_bytes())):
            await publish(self._sends_to, message, reply=self._receives_from)

    def _look(self) -> None:
        """Wakes whoever waits for what is so now."""
        link, ended = self._link, self._link.ended is not None
        if ended or link.has_frames:
            self._readable.set()
        if ended or link.is_flushed:
            self._flushed.set()
        if ended or link.due() < self._planned:
            self._wake.set()

    async def _wait_flushed(self) -> None:
        while True:
            if (ended := self._link.ended) is not None:
                raise ended.error()
            if self._link.is_flushed:
                return
            self._flushed.clear()
            await self._flushed.wait()

    def _see_connection(self, connected: bool) -> None:
        if connected:
            self._link.came_back(time.monotonic())
        self._wake.set()

    def _chunk_bytes(self) -> int:
        return max(1, min(self._limits.chunk_bytes, self._nats.max_payload - HEADER.size))


def is_no_responders(message: Msg) -> bool:
    """Whether this is NATS's word that a message of ours reached nobody."""
    return message.headers is not None and message.headers.get("Status") == _NO_RESPONDERS
