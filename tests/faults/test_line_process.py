"""Processes that are read line by line."""

from __future__ import annotations

import signal
import subprocess
import sys

import psutil
import pytest

from gguf_worker.testing.process import LineProcess

pytestmark = pytest.mark.anyio

SHELL = "/bin/sh"


async def test_lines_of_both_streams_are_kept() -> None:
    """In the order in which they came, with the last one although it has no end."""
    script = "echo one; sleep 0.05; echo two >&2; sleep 0.05; printf three"
    async with LineProcess((SHELL, "-c", script)) as process:
        assert await process.wait_line(lambda line: line.startswith("t")) == "two"
        assert (await process.wait()).exit_code == 0
        assert process.lines == ["one", "two", "three"]
        assert process.bytes_read == len("one\ntwo\nthree")


async def test_end_is_told_with_the_last_lines() -> None:
    """And how it ended: to whoever waits for a line or for bytes that do not come."""
    async with LineProcess((SHELL, "-c", "echo last words")) as process:
        with pytest.raises(EOFError, match=r"exit_code=0.*last words"):
            await process.wait_line(lambda line: line == "never")
        with pytest.raises(EOFError, match=r"exit_code=0.*last words"):
            await process.wait_written(100)


async def test_what_still_runs_is_ended() -> None:
    """By the signal that was asked for, or by the end of the `async with`."""
    async with LineProcess((SHELL, "-c", "echo on; exec sleep 100")) as process:
        await process.wait_line(lambda line: line == "on")
        assert (await process.end(signal.SIGKILL)).signal == signal.SIGKILL
    async with LineProcess((SHELL, "-c", "echo on; exec sleep 100")) as process:
        await process.wait_line(lambda line: line == "on")
    assert process.status is not None
    assert process.status.signal == signal.SIGTERM


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal")
def test_child_never_outlives_its_parent() -> None:
    """A parent that is killed takes it along."""
    source = (
        "import subprocess, sys; from gguf_worker.testing.process import dying_with_parent\n"
        "child = subprocess.Popen(dying_with_parent(('/bin/sleep', '100')))\n"
        "print(child.pid, flush=True); child.wait()"
    )
    parent = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    child.wait(20)
