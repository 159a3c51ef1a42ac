"""A child process: its end, its status, its group, its descriptors."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest

from gguf_worker.errors import SpawnFailed
from gguf_worker.process.child import ChildProcess
from gguf_worker.process.death import PeekingReaper, PollingReaper, Reaper
from gguf_worker.process.exit import RawStatus, StopRung
from gguf_worker.process.release import measure_release

pytestmark = pytest.mark.anyio


@contextmanager
def python(program: str) -> Iterator[ChildProcess]:
    """A child that runs a Python program; whatever happens, nothing of it is left."""
    child = ChildProcess.spawn([sys.executable, "-c", program], os.environ)
    try:
        yield child
    finally:
        child.destroy()


async def end_of(child: ChildProcess) -> RawStatus:
    with anyio.fail_after(20):
        await child.wait_for_end()
    return child.reap()


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("pass", RawStatus(exit_code=0)),
        ("raise SystemExit(7)", RawStatus(exit_code=7)),
        ("import os; os.kill(os.getpid(), 9)", RawStatus(signal=signal.SIGKILL)),
    ],
)
async def test_child_gives_its_status_once_it_ended(program: str, status: RawStatus) -> None:
    """Exit codes and signals are told apart; taking the status twice gives the same."""
    with python(program) as child:
        assert await end_of(child) == status
        assert child.reap() == status


async def test_child_without_a_pidfd_is_seen_to_end_too() -> None:
    """Systems without pidfds look for the end at intervals."""
    with python("raise SystemExit(3)") as child:
        if child.pidfd is not None:
            child.pidfd.close()
        assert await end_of(child) == RawStatus(exit_code=3)


@pytest.mark.parametrize("kind", [PeekingReaper, PollingReaper])
async def test_reapers_agree(kind: type[PeekingReaper] | type[PollingReaper]) -> None:
    """Both ways of taking a status say the same of a running and of an ended child."""
    with python("import sys; sys.stdin.read(); raise SystemExit(5)") as child:
        reaper: Reaper = kind(child.pid)
        assert reaper.is_ours()
        assert not reaper.has_ended()
        with pytest.raises(RuntimeError, match="has not ended"):
            reaper.take()
        child._reaper = reaper
        child.stdin.close()
        assert await end_of(child) == RawStatus(exit_code=5)


@pytest.mark.skipif(sys.platform != "linux", reason="pidfds are Linux's")
async def test_stolen_status_is_said_and_recovered_where_the_kernel_kept_it() -> None:
    """Another part of the program that reaps our child is noticed; Linux may still know how it ended."""
    with python("raise SystemExit(9)") as child:
        with anyio.fail_after(20):
            await child.wait_for_end()
        os.waitpid(child.pid, 0)  # noqa: ASYNC222 - it has ended
        status = child.reap()
    assert status.stolen
    assert status.exit_code in (9, None)
    if tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 15):
        assert status.exit_code == 9


async def test_reap_kills_what_the_child_left_in_its_group() -> None:
    """A grandchild does not outlive the worker that started it."""
    program = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)"
    )
    with python(program + "; import os; os._exit(0)") as child:
        await end_of(child)
        child.destroy()
        report = await measure_release(child, stop_rung=StopRung.EOF, bye=None)
    assert report.group_empty
    assert report.complete


async def test_release_of_a_living_process_says_what_is_left() -> None:
    """What was not released is named."""
    with python("input()") as child:
        report = await measure_release(child, stop_rung=StopRung.NONE, bye=None)
        assert not report.complete
        assert not report.process_reaped
        assert f"process {child.pid} has not ended" in report.unreleased
        assert any("descriptors" in text for text in report.unreleased)


async def test_signal_to_an_ended_child_reaches_nobody() -> None:
    """After the status is taken, the number may be somebody else's and is never signalled again."""
    with python("pass") as child:
        await end_of(child)
        child.signal_group(signal.SIGKILL)
        assert child.signals_sent == set()


async def test_child_runs_in_a_group_of_its_own_with_default_signals() -> None:
    """The group is the child's, and SIGPIPE is what C programs expect."""
    program = (
        "import os, signal, sys; "
        "ok = os.getpgid(0) == os.getpid() and signal.getsignal(signal.SIGPIPE) is not None; "
        "status = open('/proc/self/status').read() if os.path.exists('/proc/self/status') else 'SigIgn: 0'; "
        "sys.stdout.write(str(ok)); sys.stdout.flush(); sys.stdin.read()"
    )
    with python(program) as child:
        with anyio.fail_after(20):
            await anyio.wait_readable(child.stdout.number)
        assert os.read(child.stdout.number, 100) == b"True"
        assert os.getpgid(child.pid) == child.pid != os.getpgid(0)


def test_spawn_of_what_is_no_program_is_refused() -> None:
    """The system's reason is told, and no descriptor is left."""
    with pytest.raises(SpawnFailed) as caught:
        ChildProcess.spawn(["/nowhere/program"], os.environ)
    assert "No such file" in caught.value.message
    assert caught.value.fields["path"] == "/nowhere/program"
