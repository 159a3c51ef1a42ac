"""A task group that fails with one plain exception, and keeps nothing of what failed."""

from __future__ import annotations

import gc
import weakref

import anyio
import pytest

from gguf_worker._tasks import plain_task_group

pytestmark = pytest.mark.anyio


class Held:
    """Something that a request has while it runs."""


async def fail_holding(watched: list[weakref.ref[Held]]) -> None:
    held = Held()
    watched.append(weakref.ref(held))
    async with plain_task_group() as tasks:
        tasks.start_soon(anyio.sleep_forever)
        await anyio.lowlevel.checkpoint()
        raise ValueError("the request failed")


async def test_the_first_error_comes_bare() -> None:
    with pytest.raises(ValueError, match="the request failed") as caught:
        await fail_holding([])
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


async def test_a_failure_frees_what_it_held_without_a_collection() -> None:
    watched: list[weakref.ref[Held]] = []
    gc.disable()
    try:
        for _ in range(3):
            try:
                await fail_holding(watched)
            except ValueError:
                await anyio.lowlevel.checkpoint()
        assert [reference() for reference in watched] == [None] * 3
    finally:
        gc.enable()


async def test_of_several_errors_the_first_is_raised_and_the_others_are_its_cause() -> None:
    async def fail(text: str) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise ValueError(text)

    async def fail_twice() -> None:
        async with plain_task_group() as tasks:
            tasks.start_soon(fail, "second")
            await anyio.lowlevel.checkpoint()
            raise ValueError("first")

    with pytest.raises(ValueError, match="first") as caught:
        await fail_twice()
    assert isinstance(caught.value.__cause__, BaseExceptionGroup)
