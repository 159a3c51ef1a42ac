"""No worker outlives its supervisor, in whatever state either of them is."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from gguf_worker.testing import host

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the end of a process is awaited by pidfd")


@pytest.mark.parametrize("state", host.STATES)
def test_worker_ends_with_its_killed_supervisor(state: str, note: Callable[[str], None]) -> None:
    """SIGKILL gives the supervisor no time to say anything; the worker is gone all the same."""
    command = [sys.executable, "-m", host.__name__, state]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        worker = os.pidfd_open(pid)
        try:
            began = time.perf_counter()
            process.kill()
            gone, _, _ = select.select([worker], [], [], 20)
            took_ms = (time.perf_counter() - began) * 1e3
            note(f"worker of a killed supervisor, {state}: gone after {took_ms:.1f} ms")
        finally:
            os.close(worker)
    assert gone, f"worker {pid} outlived its supervisor"


def test_host_that_forks_does_not_keep_the_pipes_open() -> None:
    """A forked process closes its copies of our ends, so the worker sees the end of its input."""
    program = """
import anyio, os, signal
from gguf_worker import Supervisor
from fakes import SETTINGS, spec

async def main():
    async with Supervisor(spec(), settings=SETTINGS) as worker:
        child = os.fork()
        if child == 0:
            signal.pause()
        worker._life.channel.close_input()
        report = await worker.wait_for_end()
        print(report.cause, report.exit_code)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

anyio.run(main)
"""
    assert _run(program) == "exit_code 0"


def test_forked_host_leaves_the_worker_to_its_parent() -> None:
    """A forked process that leaves the supervisor's context stops nothing: the worker is not its child."""
    program = """
import anyio, os
from gguf_worker import Supervisor
from fakes import SETTINGS, spec

async def main():
    async with Supervisor(spec(), settings=SETTINGS) as worker:
        child = os.fork()
        if child == 0:
            worker._life._child.destroy()
            worker._life.channel.ask_to_stop()
            os._exit(0)
        os.waitpid(child, 0)
        print(await worker.ping() > 0, worker.state)

anyio.run(main)
"""
    assert _run(program) == "True ready"


@pytest.mark.parametrize(
    ("before", "after"),
    [("signal.signal(signal.SIGCHLD, signal.SIG_IGN)", "pass"), ("pass", "os.waitpid(-1, 0)")],
    ids=["ignored SIGCHLD", "another waitpid(-1)"],
)
def test_status_that_somebody_else_takes_is_known_nevertheless(before: str, after: str) -> None:
    """The supervisor sees the end at once and goes on; where the kernel kept the status, with its cause."""
    program = f"""
import anyio, os, signal
from dataclasses import replace
from gguf_worker import Supervisor
from fakes import PROMPT, SETTINGS, spec

async def main():
    supervisor = Supervisor(spec(), settings=replace(SETTINGS, restart=PROMPT))
    async with supervisor as worker:
        {before}
        os.kill(worker.pid, signal.SIGKILL)
        {after}
        report = await worker.wait_for_end()
        with anyio.fail_after(20):
            second = await supervisor.wait_ready()
        print(report.cause, report.signal, report.status_stolen, second.pid != worker.pid, end=" ")
    print(supervisor.exit.cause, supervisor.release.complete)

anyio.run(main)
"""
    out = _run(program)
    kept = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 15)
    cause, number = ("signal_other", signal.SIGKILL.value) if kept else ("status_stolen", None)
    assert out.startswith(f"{cause} {number} True True ")
    assert out.endswith(" True")
    if kept:
        assert "clean" in out


def environment() -> dict[str, str]:
    """Of a program that finds what this one finds."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path)])}


def _run(program: str) -> str:
    """What a program of its own prints; a fork or a handler of signals must not be this process's."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
