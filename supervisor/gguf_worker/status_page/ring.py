"""The last items of a sequence. Positions count from 0 over all items that there ever were."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")


class Ring(Generic[T]):
    """Keeps the last `kept` items that were added."""

    def __init__(self, kept: int) -> None:
        self._items: deque[T] = deque(maxlen=kept)
        self.end = 0
        """The position of the next item."""

    def add(self, item: T) -> None:
        self._items.append(item)
        self.end += 1

    def since(self, position: int) -> list[T]:
        """Those from a position on that are still kept, oldest first."""
        new = min(self.end - position, len(self._items))
        return list(islice(self._items, len(self._items) - new, None))
