"""Does a worker outlive its supervisor?"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from gguf_worker.testing.figures.figure import Figure, milliseconds

STATES = ("idle", "loading", "computing", "stdout", "sibling")
"""Of `gguf_worker.testing.host`."""
AT_ONCE = 10
"""Hosts that are killed in the same moment."""
LIMIT_S = 1.0
WAIT_S = 20.0
"""How long a worker is watched that misses the limit, to say by how much."""


def killed_supervisors(per_state: int) -> Figure:
    """Kills hosts with SIGKILL, each with its worker in one of the states (Linux)."""
    times: dict[str, list[float]] = {}
    for state in STATES:
        left = per_state
        while left > 0:
            count = min(left, AT_ONCE)
            times.setdefault(state, []).extend(_kill_together(state, count))
            left -= count
    everybody = [seconds for found in times.values() for seconds in found]
    late = sum(seconds > LIMIT_S for seconds in everybody)
    return Figure(
        name="killed supervisors",
        promise=f"every worker is gone within {LIMIT_S:g} s of its supervisor's SIGKILL",
        values={
            "supervisors": len(everybody),
            "workers_gone_in_time": len(everybody) - late,
            **{f"{state}_max_ms": milliseconds(max(found)) for state, found in times.items()},
        },
        problems=(f"{late} workers were gone later",) if late else (),
    )


def _kill_together(state: str, count: int) -> list[float]:
    """Seconds until each of the workers was gone; WAIT_S for one that was not."""
    with ExitStack() as stack:
        hosts = [stack.enter_context(_host(state)) for _ in range(count)]
        workers = [stack.enter_context(_worker_of(host)) for host in hosts]
        began = time.perf_counter()
        for host in hosts:
            host.kill()
        return list(_gone(workers, began))


@contextmanager
def _host(state: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "gguf_worker.testing.host", state]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def _worker_of(host: subprocess.Popen[str]) -> Iterator[int]:
    """A pidfd of the host's worker, when that is in the state."""
    assert host.stdout is not None
    said = host.stdout.readline()
    if not said:
        raise RuntimeError(f"a host ended with status {host.wait()} before its worker was there")
    worker = os.pidfd_open(int(said))
    try:
        yield worker
    finally:
        os.close(worker)


def _gone(workers: Sequence[int], began: float) -> Iterator[float]:
    waiting = set(workers)
    while waiting:
        ended, _, _ = select.select(waiting, [], [], max(0.0, began + WAIT_S - time.perf_counter()))
        if not ended:
            break
        waiting -= set(ended)
        yield from [time.perf_counter() - began] * len(ended)
    yield from [WAIT_S] * len(waiting)
