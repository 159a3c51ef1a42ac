"""Requests that may take as long as they make progress."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TypeVar

import anyio

from gguf_worker.errors import RequestError, RequestTimeout
from gguf_worker.process.exit import ExitCause
from gguf_worker.protocol.messages import Answer, GetHealth, Health, Progress, Request
from gguf_worker.supervision.channel import ProgressCallback
from gguf_worker.supervision.life import Life

AnswerT = TypeVar("AnswerT", bound=Answer)

LOOKS_PER_DEADLINE = 4


@dataclass(slots=True)
class ProgressWatch:
    """How long ago something last moved. The clock is an argument, in seconds. No I/O."""

    moved_at: float
    _mark: object = None

    def observe(self, mark: object, now: float) -> None:
        """Takes a reading; another than the last one is progress."""
        if mark != self._mark:
            self._mark = mark
            self.moved_at = now

    def still_for(self, now: float) -> float:
        """Seconds without progress."""
        return now - self.moved_at


async def watched_request(
    life: Life,
    request: Request,
    answer: type[AnswerT],
    *,
    stall_s: float,
    on_progress: ProgressCallback | None = None,
) -> AnswerT:
    """Sends a request that reports progress, and waits for its answer for as long as there is any.

    Progress is a `progress` frame or another reading of the worker's health: bytes of the phase, or its
    counter. A worker without any for `stall_s` hangs; it is killed, and the request fails with WorkerDied
    of cause `hang`.
    """
    watch = ProgressWatch(time.monotonic())
    phase = "its start"

    def report(progress: Progress) -> None:
        nonlocal phase
        phase = progress.phase
        watch.moved_at = time.monotonic()
        if on_progress is not None:
            on_progress(progress)

    pending = life.channel.submit(request, on_progress=report)
    try:
        while not pending.done:
            with anyio.move_on_after(stall_s / LOOKS_PER_DEADLINE):
                await pending.wait()
            if not pending.done and watch.still_for(time.monotonic()) > 0:
                await _look(life, watch, stall_s / LOOKS_PER_DEADLINE)
            if not pending.done and watch.still_for(time.monotonic()) >= stall_s:
                detail = f"{request.type} made no progress in {phase} for {stall_s:g} s"
                life.condemn(ExitCause.HANG, detail)
                with anyio.move_on_after(life.kill_deadline_s):
                    await pending.wait()
                if not pending.done:
                    raise RequestTimeout(f"{detail}, and SIGKILL did not end its worker")
    except BaseException:
        life.channel.abandon(pending)
        raise
    return pending.fetch(answer)


async def _look(life: Life, watch: ProgressWatch, timeout_s: float) -> None:
    """Reads the worker's health; one that does not answer has made no progress that we know of."""
    try:
        health = await life.channel.request(GetHealth(), Health, timeout_s=timeout_s)
    except (RequestTimeout, RequestError):
        return
    watch.observe((health.phase, health.phase_done, health.progress), time.monotonic())
