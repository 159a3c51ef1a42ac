"""A host whose event loop stood still (it was stopped, swapped out, or did something long) blames nobody for
that time."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from fakes import SETTINGS, spec
from gguf_worker import ExitCause, ShardSpec, Supervisor, WorkerReady, WorkerState
from gguf_worker.errors import StartupError
from gguf_worker.protocol.messages import Progress
from gguf_worker.supervision.life import Life
from misbehaving import executable

LOOPS = pytest.mark.parametrize("options", [{}, {"use_uvloop": True}], ids=["asyncio", "uvloop"])

WAIT_S = 0.4


@LOOPS
def test_hello_that_the_host_could_not_read_in_time_is_read(options: dict[str, bool]) -> None:
    """The worker said it while the host was stopped for more than the timeout."""
    settings = replace(SETTINGS, hello_timeout_s=WAIT_S)
    supervisor = Supervisor(spec(), settings=settings)

    async def stand_still() -> None:
        while supervisor.pid is None:
            await anyio.lowlevel.checkpoint()
        time.sleep(2 * WAIT_S)  # noqa: ASYNC251 - it stands still on purpose

    async def live() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stand_still)
            async with supervisor as worker:
                await worker.ping()

    anyio.run(live, backend_options=options)
    assert supervisor.exit is not None
    assert supervisor.exit.cause is ExitCause.CLEAN


@LOOPS
def test_death_that_the_host_could_not_see_in_time_is_told_as_it_was(
    options: dict[str, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker closed its pipe, then died of something else while the host was stopped for more than the
    grace."""
    settings = replace(
        SETTINGS, executable=executable(tmp_path, "closes_stdout_then_exits"), end_of_stream_grace_s=WAIT_S
    )
    supervisor = Supervisor(ShardSpec("none", layers=(0, 12)), settings=settings)
    end_of_stream = Life._on_stream_end

    def then_stand_still(life: Life, detail: str) -> None:
        end_of_stream(life, detail)
        # When the grace has begun and before it is over.
        asyncio.get_running_loop().call_later(WAIT_S / 4, time.sleep, 2 * WAIT_S)

    monkeypatch.setattr(Life, "_on_stream_end", then_stand_still)

    async def live() -> None:
        async with supervisor as worker:
            with anyio.fail_after(20):
                await worker.wait_for_end()

    anyio.run(live, backend_options=options)
    assert supervisor.exit is not None
    assert (supervisor.exit.cause, supervisor.exit.exit_code) == (ExitCause.EXIT_CODE, 3)


@LOOPS
def test_worker_that_was_dead_when_its_load_was_read_was_never_ready(
    options: dict[str, bool], tmp_path: Path
) -> None:
    """Its end is seen before its `loaded` is read: that is a start that failed, and no event says that it
    takes requests."""
    settings = replace(SETTINGS, executable=executable(tmp_path, "loads_then_exits"))

    def read_no_more(_: Progress) -> None:
        assert supervisor._life is not None
        asyncio.get_running_loop().remove_reader(supervisor._life.channel.stdout.number)

    supervisor = Supervisor(ShardSpec("none", layers=(0, 12)), settings=settings, on_progress=read_no_more)
    events = supervisor.events()

    async def live() -> None:
        with anyio.fail_after(20), pytest.raises(StartupError) as caught:
            await supervisor.__aenter__()
        assert caught.value.code == "exit_code"
        assert not any([isinstance(event, WorkerReady) async for event in events])

    anyio.run(live, backend_options=options)
    assert supervisor.worker is None
    assert supervisor.state is WorkerState.FAILED
