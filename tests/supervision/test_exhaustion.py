"""A host that has no descriptor left: nothing hangs, nothing leaks, and nothing is called clean that nobody
could look at."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import anyio
import psutil
import pytest

from fakes import PROMPT, SETTINGS, spec
from gguf_worker import RestartPolicy, RestartScheduled, StopRung, Supervisor, WorkerState
from gguf_worker.errors import SpawnFailed, Unreleased

pytestmark = pytest.mark.anyio

SPAWN_NEEDS = 8
"""Descriptors that a spawn has open at once, at least: three pipes and the one on which exec reports."""


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """This process can open so many more, and no other."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        while True:
            try:
                held.append(os.dup(0))
            except OSError:
                break
        for number in held[:count]:
            os.close(number)
        del held[:count]
        yield
    finally:
        for number in held:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("count", range(SPAWN_NEEDS))
async def test_spawn_without_descriptors_leaves_none_behind(count: int) -> None:
    """At whichever of them it fails, it says why; that no other is left open is checked of every test."""
    supervisor = Supervisor(spec(), settings=SETTINGS)
    before = psutil.Process().children()
    with descriptors_left(count), pytest.raises(SpawnFailed, match="Too many open files"):
        await supervisor.__aenter__()
    assert psutil.Process().children() == before


async def test_spawn_without_descriptors_is_tried_again() -> None:
    """They may come back, so the policy decides about it as about a death."""
    supervisor = Supervisor(spec(), settings=replace(SETTINGS, restart=RestartPolicy(backoff_initial_s=60)))
    events = supervisor.events()
    async with anyio.create_task_group() as tasks:
        with descriptors_left(0):
            tasks.start_soon(partial(_enter_and_leave, supervisor))
            with anyio.fail_after(20):
                scheduled = await events.wait_for(RestartScheduled)
        assert "Too many open files" in scheduled.reason
        supervisor.reset()
    assert (supervisor.state, supervisor.generation) == (WorkerState.STOPPED, 2)


async def _enter_and_leave(supervisor: Supervisor) -> None:
    with anyio.fail_after(20):
        async with supervisor as worker:
            await worker.ping()


async def test_worker_is_stopped_where_no_descriptor_is_left() -> None:
    """By its request, and reaped; memory and leftovers are measured with those that it gave back."""
    supervisor = Supervisor(spec(), settings=SETTINGS)
    async with supervisor:
        exhausted = descriptors_left(0)
        exhausted.__enter__()
    exhausted.__exit__(None, None, None)
    assert supervisor.release is not None
    assert supervisor.release.stop_rung is StopRung.REQUEST
    assert supervisor.release.complete


@pytest.mark.skipif(sys.platform != "linux", reason="there is a /proc on Linux only")
async def test_release_that_nobody_can_look_at_is_unreleased(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where /proc cannot be read, what the worker started is unknown, which is not the same as nothing."""

    def scandir(path: str) -> Iterator[os.DirEntry[str]]:
        raise OSError(23, "Too many open files in system", path)

    supervisor = Supervisor(spec(), settings=replace(SETTINGS, restart=PROMPT))
    async with supervisor as worker:
        monkeypatch.setattr("gguf_worker.process.survivors.os.scandir", scandir)
        os.kill(worker.pid, 9)
        await worker.wait_for_end()
        with anyio.fail_after(20), pytest.raises(Unreleased, match="Too many open files in system"):
            await supervisor.wait_ready()
        assert supervisor.release is not None
        assert supervisor.release.process_reaped
        monkeypatch.undo()
        supervisor.reset()
        with anyio.fail_after(20):
            await supervisor.wait_ready()
    assert supervisor.release.complete
