"""A TCP proxy that can stand for a bad network: a partition, a half of one, a long way, a reset."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, SocketAttribute, SocketStream
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from gguf_worker._tasks import plain_task_group

READ_BYTES = 65536
PIECES_UNDER_WAY = 16
"""Of one direction of one connection; more are not read. A long way needs more: so many in its delay is as
fast as it gets."""


@dataclass(eq=False)
class Direction:
    """One way through the proxy, of all its connections."""

    delay_s: float = 0.0
    """How long every byte takes."""
    _cut: anyio.Event | None = None
    """Set when it heals."""

    def cut(self) -> None:
        """Nothing passes from now on; connections stay as they are."""
        self._cut = self._cut or anyio.Event()

    def heal(self) -> None:
        """What was held back passes, and what follows."""
        if self._cut is not None:
            self._cut.set()
            self._cut = None

    async def passes(self) -> None:
        """Returns when it is not cut."""
        while self._cut is not None:
            await self._cut.wait()


class Proxy:
    """Passes connections on to one address."""

    def __init__(self, host: str, port: int, *, under_way: int = PIECES_UNDER_WAY) -> None:
        self._target = (host, port)
        self._under_way = under_way
        self._connections: set[anyio.CancelScope] = set()
        self._stranded = anyio.Event()
        self.host = "127.0.0.1"
        self.port = 0
        self.up = Direction()
        """From whoever connects."""
        self.down = Direction()

    def cut(self) -> None:
        """A partition: nothing passes, and nobody is told."""
        self.up.cut()
        self.down.cut()

    def heal(self) -> None:
        """The end of a partition. Bytes that were under way arrive, as TCP sees to it."""
        self.up.heal()
        self.down.heal()

    def strand(self) -> None:
        """Connections that are there carry nothing more, and are not told; new ones do."""
        self._stranded.set()
        self._stranded = anyio.Event()

    def reset(self) -> None:
        """Ends every connection; new ones are taken."""
        for scope in tuple(self._connections):
            scope.cancel()

    async def _serve(self, client: SocketStream) -> None:
        with anyio.CancelScope() as scope:
            self._connections.add(scope)
            stranded = self._stranded
            try:
                async with client, await anyio.connect_tcp(*self._target) as server:
                    await self._carry(client, server, stranded)
                    if stranded.is_set():
                        await anyio.sleep_forever()
            except* OSError:
                pass  # the target is not there: the client's connection ends
            finally:
                self._connections.discard(scope)

    async def _carry(self, client: SocketStream, server: SocketStream, stranded: anyio.Event) -> None:
        """Until both ways have ended, or the connection is stranded."""

        async def stop() -> None:
            await stranded.wait()
            watch.cancel_scope.cancel()

        async with anyio.create_task_group() as watch:
            watch.start_soon(stop)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._pass_on, client, server, self.up)
                tasks.start_soon(self._pass_on, server, client, self.down)
            watch.cancel_scope.cancel()

    async def _pass_on(self, source: ByteReceiveStream, sink: ByteSendStream, direction: Direction) -> None:
        give, take = anyio.create_memory_object_stream[tuple[float, bytes]](self._under_way)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read, source, give, direction)
            await _write(take, sink, direction)
            tasks.cancel_scope.cancel()


async def _read(
    source: ByteReceiveStream, give: MemoryObjectSendStream[tuple[float, bytes]], direction: Direction
) -> None:
    async with give:
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                data = await source.receive(READ_BYTES)
                await give.send((anyio.current_time() + direction.delay_s, data))


async def _write(
    take: MemoryObjectReceiveStream[tuple[float, bytes]], sink: ByteSendStream, direction: Direction
) -> None:
    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async with take:
            async for moment, data in take:
                await anyio.sleep_until(moment)
                await direction.passes()
                await sink.send(data)
        await sink.aclose()


@asynccontextmanager
async def proxy_to(host: str, port: int, *, under_way: int = PIECES_UNDER_WAY) -> AsyncIterator[Proxy]:
    """A proxy on a free port of the loopback, while it is open. It holds `under_way` pieces of each direction
    of a connection, of up to 64 KiB."""
    proxy = Proxy(host, port, under_way=under_way)
    listener = await anyio.create_tcp_listener(local_host=proxy.host, local_port=0)
    proxy.port = listener.extra(SocketAttribute.local_port)
    async with listener, plain_task_group() as tasks:
        tasks.start_soon(listener.serve, proxy._serve)
        yield proxy
        tasks.cancel_scope.cancel()
