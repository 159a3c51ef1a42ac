"""The kernel kills a worker for want of memory: really, in a group of its own."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import anyio
import pytest

from fakes import PROMPT, SETTINGS, spec
from gguf_worker import ExitCause, Supervisor
from gguf_worker.errors import WorkerDied
from gguf_worker.testing import memory

LACKING = memory.why_no_memory_group()
LIMIT_BYTES = 64 << 20

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(LACKING != "", reason=LACKING)]


async def test_worker_that_takes_too_much_memory_is_known_as_such() -> None:
    """Proven where the kernel's log may be read, probable where only its count can be; then replaced."""
    supervisor = Supervisor(spec(fault_plan="allocate@1"), settings=replace(SETTINGS, restart=PROMPT))
    with memory.memory_group(LIMIT_BYTES) as group:
        async with supervisor as worker:
            (group / "cgroup.procs").write_text(str(worker.pid))
            session = await worker.open_session()
            with anyio.fail_after(60), pytest.raises(WorkerDied) as caught:
                await session.forward(tokens=[2], output="none")
            report = caught.value.exit
            assert report.signal == signal.SIGKILL
            readable = os.access("/dev/kmsg", os.R_OK)
            expected = ExitCause.OUT_OF_MEMORY_PROVEN if readable else ExitCause.OUT_OF_MEMORY_PROBABLE
            assert report.cause is expected
            with anyio.fail_after(20):
                assert (await supervisor.wait_ready()).pid != worker.pid
