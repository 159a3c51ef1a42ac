"""A host of one supervised worker that brings it into the state that its first argument names, says the
worker's pid on stdout, and waits to be killed."""

from __future__ import annotations

import fcntl
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Awaitable, Callable

import anyio

from gguf_worker import ShardSpec, StateChanged, Supervisor, Worker, WorkerState
from gguf_worker.protocol.messages import Forward, Output, Ping

MODEL = "fake:layers=2,embd=8,vocab=64"
PAGE = 4096


def spec(plan: str | None = None) -> ShardSpec:
    return ShardSpec(MODEL, engine="fake", fault_plan=plan)


def ready_to_die(pid: int) -> None:
    """Says so, and stays as it is."""
    sys.stdout.write(f"{pid}\n")
    sys.stdout.flush()
    while True:
        time.sleep(3600)


async def with_worker(plan: str | None, prepare: Callable[[Worker], Awaitable[None]]) -> None:
    async with Supervisor(spec(plan)) as worker:
        await prepare(worker)
        ready_to_die(worker.pid)


async def nothing(_: Worker) -> None:
    pass


async def compute(worker: Worker) -> None:
    session = await worker.open_session()
    worker._life.channel.submit(Forward(session=session.id, position=0, output=Output.NONE, tokens=(2,)))
    while (await worker.health()).state != "computing":
        pass


async def fill_stdout(worker: Worker) -> None:
    """The worker's answers are not read until its pipe is full and it is blocked in a write."""
    channel = worker._life.channel
    stdout = channel.stdout.number
    fcntl.fcntl(stdout, fcntl.F_SETPIPE_SZ, PAGE)
    for _ in range(900):
        channel.submit(Ping())
    while struct.unpack("i", fcntl.ioctl(stdout, termios.FIONREAD, b"0000"))[0] < PAGE - 64:
        time.sleep(0.01)  # noqa: ASYNC251 - the loop, which would read, must not run


async def share_pipes(worker: Worker) -> None:
    """A sibling of the worker holds the host's ends of its pipes, and outlives the host."""
    channel = worker._life.channel
    ends = (channel.stdin.number, channel.stdout.number)
    subprocess.Popen(  # noqa: ASYNC220 - it is not waited for
        ["sleep", "30"], pass_fds=ends, start_new_session=True, stdout=subprocess.DEVNULL
    )


async def loading() -> None:
    supervisor = Supervisor(spec("load-slow:3600000"))

    async def announce() -> None:
        await supervisor.events().wait_for(StateChanged, lambda change: change.state is WorkerState.LOADING)
        assert supervisor.pid is not None
        ready_to_die(supervisor.pid)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(announce)
        async with supervisor:
            pass


STATES: dict[str, Callable[[], Awaitable[None]]] = {
    "idle": lambda: with_worker(None, nothing),
    "loading": loading,
    "computing": lambda: with_worker("slow:3600000", compute),
    "hanging": lambda: with_worker("hang-hard@1", compute),
    "blocked on a full stdout": lambda: with_worker(None, fill_stdout),
    "with a sibling that holds the pipes": lambda: with_worker(None, share_pipes),
}

if __name__ == "__main__":
    anyio.run(STATES[sys.argv[1]])
