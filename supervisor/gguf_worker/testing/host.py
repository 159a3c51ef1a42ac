"""A host of one supervised worker, to be killed.

`python -m gguf_worker.testing.host STATE` brings its worker into that state, says the worker's pid on stdout,
and waits. States: idle, loading, computing, hanging, stdout (the worker is blocked on a full one), sibling
(another child holds the host's ends of the pipes).
"""

from __future__ import annotations

import fcntl
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Awaitable, Callable

import anyio

from gguf_worker.protocol.messages import Forward, Output, Ping
from gguf_worker.supervision.events import LoadProgress
from gguf_worker.supervision.spec import ShardSpec
from gguf_worker.supervision.supervisor import Supervisor
from gguf_worker.supervision.worker import Worker
from gguf_worker.testing.faults import FAKE_MODEL, FOREVER_MS, Fault, hang, load_slow, plan, slow

PAGE = 4096
PINGS = 900
"""Their answers are more than a page."""


def _spec(*faults: Fault) -> ShardSpec:
    return ShardSpec(FAKE_MODEL, engine="fake", fault_plan=plan(*faults) or None)


def _ready_to_die(pid: int) -> None:
    """Says so, and stays as it is."""
    sys.stdout.write(f"{pid}\n")
    sys.stdout.flush()
    while True:
        time.sleep(3600)


def _with_worker(
    *faults: Fault, prepare: Callable[[Worker], Awaitable[None]]
) -> Callable[[], Awaitable[None]]:
    async def host() -> None:
        async with Supervisor(_spec(*faults)) as worker:
            await prepare(worker)
            _ready_to_die(worker.pid)

    return host


async def _nothing(_: Worker) -> None:
    pass


async def _compute(worker: Worker) -> None:
    session = await worker.open_session()
    worker._life.channel.submit(Forward(session=session.id, position=0, output=Output.NONE, tokens=(2,)))
    while (await worker.health()).state != "computing":
        pass


async def _fill_stdout(worker: Worker) -> None:
    """The worker's answers are not read until its pipe is full and it is blocked in a write."""
    channel = worker._life.channel
    stdout = channel.stdout.number
    fcntl.fcntl(stdout, fcntl.F_SETPIPE_SZ, PAGE)
    for _ in range(PINGS):
        channel.submit(Ping())
    while struct.unpack("i", fcntl.ioctl(stdout, termios.FIONREAD, b"0000"))[0] < PAGE - 64:
        time.sleep(0.01)  # noqa: ASYNC251 - the loop, which would read, must not run


async def _share_pipes(worker: Worker) -> None:
    """A sibling of the worker holds the host's ends of its pipes, and outlives the host."""
    channel = worker._life.channel
    ends = (channel.stdin.number, channel.stdout.number)
    subprocess.Popen(  # noqa: ASYNC220 - it is not waited for
        ["sleep", "30"], pass_fds=ends, start_new_session=True, stdout=subprocess.DEVNULL
    )


async def _loading() -> None:
    supervisor = Supervisor(_spec(load_slow(FOREVER_MS)))

    async def announce() -> None:
        await supervisor.events().wait_for(LoadProgress)
        assert supervisor.pid is not None
        _ready_to_die(supervisor.pid)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(announce)
        async with supervisor:
            pass


STATES: dict[str, Callable[[], Awaitable[None]]] = {
    "idle": _with_worker(prepare=_nothing),
    "loading": _loading,
    "computing": _with_worker(slow(FOREVER_MS), prepare=_compute),
    "hanging": _with_worker(hang(step=1, heeds_cancel=False), prepare=_compute),
    "stdout": _with_worker(prepare=_fill_stdout),
    "sibling": _with_worker(prepare=_share_pipes),
}

if __name__ == "__main__":
    anyio.run(STATES[sys.argv[1]])
