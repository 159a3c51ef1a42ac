"""What a stream has read and not answered yet: bounded in number and bytes, its own and its node's."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import anyio

from gguf_worker._schema import Buffer
from gguf_worker_v1 import stage_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A frame to be answered in its turn."""

    frame: stage_pb2.StageFrame
    rows: Buffer | None = None
    """Of a forward."""
    n_bytes: int
    """Of the frame, as it came."""
    arrived: float
    """By the clock of the stream."""

    @property
    def number(self) -> int:
        return self.frame.request


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelling:
    """A cancel, and the numbers of the requests that waited when it came."""

    request: Request
    waiting: tuple[int, ...]


Item: TypeAlias = Request | Cancelling


class ByteBudget:
    """Bytes that all queues of a node may hold together. What a queue takes without asking (see
    `RequestQueue.put`) counts as well, so that the others wait for it."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: dict[Callable[[], None], None] = {}
        """Who waits for bytes, the longest first."""

    def has(self, n_bytes: int) -> bool:
        return n_bytes <= self._free

    def take(self, n_bytes: int) -> None:
        self._free -= n_bytes
        self._tell_next()

    def give_back(self, n_bytes: int) -> None:
        self._free += n_bytes
        self._tell_next()

    def _tell_next(self) -> None:
        """One at a time: who takes bytes tells the next one. Who finds too few waits on, and hears of its own
        queue in any case, so that none waits for ever."""
        if self._free > 0 and self._waiting:
            next(iter(self._waiting))()

    @contextmanager
    def telling(self, tell: Callable[[], None]) -> Iterator[None]:
        """Calls `tell` when bytes became free and it is next, while this is open."""
        self._waiting[tell] = None
        try:
            yield
        finally:
            del self._waiting[tell]


class RequestQueue:
    """One task puts, another one gets. Who puts waits while there is too much, which is what holds up a
    client that floods its stream: nothing more is read of it."""

    def __init__(self, *, max_frames: int, max_bytes: int, budget: ByteBudget) -> None:
        self._max_frames = max_frames
        self._max_bytes = max_bytes
        self._budget = budget
        self._items: deque[Item] = deque()
        self._bytes = 0
        self._changed: anyio.Event | None = None
        """There where somebody waits."""

    async def put(self, request: Request) -> None:
        """Waits until there is room; one request has room whatever its size and whatever others hold, so
        that every stream goes on."""
        while self._items:
            if not self._has_room(request.n_bytes):
                await self._change()
            elif not self._budget.has(request.n_bytes):
                with self._budget.telling(self._wake):
                    await self._change()
            else:
                break
        self._bytes += request.n_bytes
        self._budget.take(request.n_bytes)
        self._add(request)

    def cancel(self, request: Request) -> None:
        """Puts a cancel in the place of every request that waits; it has room in any case."""
        waiting = tuple(item.number for item in self._items if isinstance(item, Request))
        earlier = [item for item in self._items if isinstance(item, Cancelling)]
        self._items = deque(earlier)
        self._forget(self._bytes)
        self._add(Cancelling(request=request, waiting=waiting))

    async def has_room(self) -> None:
        """Returns when another frame may be read."""
        while len(self._items) >= self._max_frames:
            await self._change()

    async def get(self) -> Item:
        while not self._items:
            await self._change()
        item = self._items.popleft()
        if isinstance(item, Request):
            self._forget(item.n_bytes)
        self._wake()
        return item

    def clear(self) -> None:
        """Forgets everything, at the end."""
        self._items.clear()
        self._forget(self._bytes)

    def _forget(self, n_bytes: int) -> None:
        self._bytes -= n_bytes
        self._budget.give_back(n_bytes)

    def _has_room(self, n_bytes: int) -> bool:
        return len(self._items) < self._max_frames and self._bytes + n_bytes <= self._max_bytes

    def _add(self, item: Item) -> None:
        self._items.append(item)
        self._wake()

    async def _change(self) -> None:
        self._changed = self._changed or anyio.Event()
        await self._changed.wait()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None
