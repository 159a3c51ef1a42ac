"""What a process leaves behind is found with the kernel's help, ended where that can be, and told."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import psutil
import pytest

from fakes import PROMPT, SETTINGS
from gguf_worker import ShardSpec, Supervisor, WorkerState
from gguf_worker.errors import Unreleased
from gguf_worker.process import survivors
from gguf_worker.process.child import ChildProcess
from gguf_worker.process.exit import StopRung
from gguf_worker.process.release import ReleaseReport, measure_release
from misbehaving import executable

pytestmark = pytest.mark.anyio

LINUX_ONLY = pytest.mark.skipif(sys.platform != "linux", reason="named shared memory is seen on Linux only")


@contextmanager
def python(program: str) -> Iterator[ChildProcess]:
    """A child that runs a Python program; whatever happens, nothing of it is left."""
    child = ChildProcess.spawn([sys.executable, "-c", program], os.environ)
    try:
        yield child
    finally:
        child.destroy()
        survivors.kill(survivors.marked(child.mark))


async def line_of(child: ChildProcess) -> str:
    with anyio.fail_after(20):
        await anyio.wait_readable(child.stdout.number)
    return os.read(child.stdout.number, 4096).decode().strip()


async def release_of(child: ChildProcess) -> ReleaseReport:
    with anyio.fail_after(20):
        await child.wait_for_end()
    child.reap()
    child.destroy()
    return await measure_release(child, stop_rung=StopRung.KILL, bye=None)


GRANDCHILD = (
    "import subprocess, sys; subprocess.Popen([sys.executable, '-c', "
    "'import os, time; print(os.getpid(), flush=True); time.sleep(60)'], "
    "start_new_session={away}); sys.stdin.read()"
)
"""It says its pid itself: until its exec is over it has no environment to be known by."""


@pytest.mark.parametrize("away", [False, True], ids=["in the group", "in a session of its own"])
async def test_process_that_it_started_is_ended_wherever_it_went(away: bool) -> None:
    """A grandchild does not outlive the worker, also where no signal to the group reaches it."""
    with python(GRANDCHILD.format(away=away)) as child:
        grandchild = psutil.Process(int(await line_of(child)))
        child.stdin.close()
        report = await release_of(child)
    assert (report.survivors, report.group_empty, report.unreleased) == ((), True, ())
    assert report.resident_after_bytes == 0
    assert not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE


async def test_process_that_cannot_be_ended_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be verified is said, with its pid and its memory, and nothing is claimed."""
    monkeypatch.setattr(survivors, "kill", lambda _: None)
    monkeypatch.setattr("gguf_worker.process.release.SURVIVORS_DEADLINE_S", 0.05)
    with python(GRANDCHILD.format(away=True)) as child:
        grandchild = int(await line_of(child))
        child.stdin.close()
        report = await release_of(child)
        monkeypatch.undo()
    assert report.survivors == (grandchild,)
    assert not report.complete
    assert f"processes [{grandchild}]" in report.unreleased[0]
    assert report.resident_after_bytes > 0


SHARED = (
    "from multiprocessing import resource_tracker, shared_memory; import sys; "
    "resource_tracker.register = lambda *_: None; "
    "s = shared_memory.SharedMemory(create=True, size=4096); print(s.name, flush=True); sys.stdin.read(); "
    "{end}"
)


@LINUX_ONLY
@pytest.mark.parametrize(("end", "is_left"), [("s.unlink()", False), ("pass", True)], ids=["removed", "left"])
async def test_shared_memory_that_it_held_is_looked_for(end: str, is_left: bool) -> None:
    """A name that the process was seen to hold and that is still there is unreleased."""
    with python(SHARED.format(end=end)) as child:
        name = Path("/dev/shm") / (await line_of(child))
        child.shared_memory.look()
        child.stdin.close()
        report = await release_of(child)
    try:
        assert report.shared_memory == ((str(name),) if is_left else ())
        assert report.complete is not is_left
    finally:
        name.unlink(missing_ok=True)


@LINUX_ONLY
async def test_shared_memory_of_others_is_not_blamed_on_it() -> None:
    """A name that appeared meanwhile, but that the process never held, is somebody else's."""
    name = Path("/dev/shm") / f"gguf-worker-test-{os.getpid()}"
    with python("input()") as child:
        name.write_bytes(b"somebody else's")
        try:
            child.shared_memory.look()
            child.stdin.close()
            report = await release_of(child)
        finally:
            name.unlink()
    assert report.shared_memory == ()


async def test_resident_memory_is_told_from_before_and_after(tmp_path: Path) -> None:
    """Before is what the process held when it was told to stop; after is nothing."""
    settings = replace(SETTINGS, executable=executable(tmp_path, "good"))
    supervisor = Supervisor(ShardSpec("none", layers=(0, 12)), settings=settings)
    async with supervisor as worker:
        resident = psutil.Process(worker.pid).memory_info().rss
    assert supervisor.release is not None
    assert supervisor.release.resident_before_bytes >= resident // 2 > 0
    assert supervisor.release.resident_after_bytes == 0


@LINUX_ONLY
async def test_worker_that_leaves_something_is_not_started_again(tmp_path: Path) -> None:
    """What a dead worker still occupies would be missing to the next one: it is said, and blocks the
    reload."""
    program = executable(tmp_path, "leaves_shared_memory")
    settings = replace(SETTINGS, executable=program, restart=PROMPT, environment={"SHM_NAME": tmp_path.name})
    supervisor = Supervisor(ShardSpec("none", layers=(0, 12)), settings=settings)
    name = Path("/dev/shm") / tmp_path.name
    try:
        async with supervisor:
            with anyio.fail_after(20), pytest.raises(Unreleased) as caught:
                await _until_failed(supervisor)
            assert str(name) in caught.value.message
            assert (supervisor.generation, supervisor.state) == (1, WorkerState.FAILED)
            name.unlink()
            supervisor.reset()
            with anyio.fail_after(20):
                await supervisor.wait_ready()
            assert supervisor.generation == 2
    finally:
        name.unlink(missing_ok=True)


@LINUX_ONLY
async def test_reset_before_the_release_is_known_does_not_pass_it_over(tmp_path: Path) -> None:
    """A worker that is given up at its death may be reset while it is still being measured; what it leaves
    blocks the reload all the same, until somebody who knows of it asks again."""
    program = executable(tmp_path, "leaves_shared_memory")
    settings = replace(SETTINGS, executable=program, environment={"SHM_NAME": tmp_path.name})
    supervisor = Supervisor(ShardSpec("none", layers=(0, 12)), settings=settings)
    name = Path("/dev/shm") / tmp_path.name
    try:
        async with supervisor as worker:
            os.kill(worker.pid, 9)
            await worker.wait_for_end()
            assert (supervisor.state, supervisor.release) == (WorkerState.FAILED, None)
            supervisor.reset()
            with anyio.fail_after(20), pytest.raises(Unreleased):
                await supervisor.wait_ready()
            assert supervisor.generation == 1
    finally:
        name.unlink(missing_ok=True)


async def _until_failed(supervisor: Supervisor) -> None:
    worker = await supervisor.wait_ready()
    os.kill(worker.pid, 9)
    await worker.wait_for_end()
    await supervisor.wait_ready()
