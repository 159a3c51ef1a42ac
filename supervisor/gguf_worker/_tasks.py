"""A task group that fails with one plain exception."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup


@asynccontextmanager
async def plain_task_group() -> AsyncIterator[TaskGroup]:
    """As anyio's task group, but callers see the error that came first and not a group of one."""
    failed: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        first, *others = _leaves(group)
        if others:
            raise first from group
        failed = first
    # Out of the `except`, and with no name left: an error whose context is the group that holds it, or that
    # a frame of its own traceback holds, is a cycle. It would keep all that a failed request had until a
    # garbage collection, and these stop the event loop.
    if failed is not None:
        try:
            raise failed
        finally:
            del failed


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
