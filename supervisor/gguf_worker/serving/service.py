"""Supervised shards that are served together, from their start to their drain."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from enum import StrEnum

import anyio

from gguf_worker._tasks import plain_task_group
from gguf_worker._text import printable
from gguf_worker.errors import WorkerStopped
from gguf_worker.logs import log_event
from gguf_worker.serving.part import Part
from gguf_worker.serving.shard import Look, Shard
from gguf_worker.serving.signals import StopRequest
from gguf_worker.supervision.lifecycle import WorkerState
from gguf_worker.supervision.settings import WorkerSettings
from gguf_worker.supervision.spec import ShardSpec

log = logging.getLogger(__name__)


class Phase(StrEnum):
    """Where a service is."""

    STARTING = "starting"
    """Not every worker has been ready yet."""
    READY = "ready"
    DEGRADED = "degraded"
    """Every worker was ready, and one is being started again."""
    DRAINING = "draining"
    """It was asked to stop: requests that are under way finish, no session is opened."""
    STOPPED = "stopped"


class Service:
    """One supervised worker per shard. `run` is its whole life; everything else may be asked at any time."""

    def __init__(self, model: str) -> None:
        self.model = model
        """As it was given."""
        self.shards: tuple[Shard, ...] = ()
        """In the order of their layers; none before `run`."""
        self.parts: dict[str, Part] = {}
        """What is served with the shards, by the name that it has in the status."""
        self._began = time.monotonic()
        self._was_ready = False
        self._is_draining = False
        self._is_stopped = False
        self._changed = anyio.Event()

    # ---- what it is ----

    @property
    def phase(self) -> Phase:
        if self._is_stopped:
            return Phase.STOPPED
        if self._is_draining:
            return Phase.DRAINING
        if self.shards and not self.waiting_for:
            return Phase.READY
        return Phase.DEGRADED if self._was_ready else Phase.STARTING

    @property
    def waiting_for(self) -> tuple[Shard, ...]:
        """The shards that are not ready."""
        return tuple(shard for shard in self.shards if shard.state is not WorkerState.READY)

    @property
    def is_live(self) -> bool:
        """Whether every worker is taken care of, ready or not."""
        return all(shard.is_live for shard in self.shards)

    @property
    def uptime_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def pid(self) -> int:
        return os.getpid()

    def summary(self) -> str:
        """One line for people."""
        if not self.shards:
            return f"{self.phase.value}: {printable(self.model)}"
        others = "".join(f"; layers {shard.layers}: {shard.state.value}" for shard in self.waiting_for)
        n_ready = len(self.shards) - len(self.waiting_for)
        return f"{self.phase.value}: {n_ready} of {len(self.shards)} workers ready{others}"

    def next_change(self) -> anyio.Event:
        """Set when phase or summary may have become others; take it before looking at these."""
        return self._changed

    async def look(self) -> tuple[Look, ...]:
        """One look at every shard; a worker that does not answer costs a second."""
        looks: dict[int, Look] = {}

        async def look_at(index: int, shard: Shard) -> None:
            looks[index] = await shard.look()

        async with plain_task_group() as tasks:
            for index, shard in enumerate(self.shards):
                tasks.start_soon(look_at, index, shard)
        return tuple(looks[index] for index in sorted(looks))

    # ---- its life ----

    async def run(
        self,
        specs: Sequence[ShardSpec],
        *,
        settings: WorkerSettings,
        stop: StopRequest,
        drain_timeout_s: float,
        beside: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
    ) -> None:
        """Serves the shards until `stop` is asked for, then drains and stops them; no worker is left. What is
        `beside` the shards is open until the stop is asked for, and left before they are drained.

        Raises why a worker could not be started or was given up, when every other one was stopped as well.
        """
        self.shards = tuple(Shard(spec, settings, self._note_change) for spec in specs)
        async with plain_task_group() as watch:
            watch.start_soon(self._kill_where_urgent, stop)
            try:
                async with plain_task_group() as tasks:
                    for shard in self.shards:
                        tasks.start_soon(self._keep, shard, stop, name=f"shard {shard.layers}")
                    async with beside():
                        await stop.asked.wait()
                        self._begin_drain(drain_timeout_s)
                    await self._drain(drain_timeout_s)
                    tasks.cancel_scope.cancel()
            finally:
                self._is_stopped = True
                self._note_change()
                watch.cancel_scope.cancel()

    async def _keep(self, shard: Shard, stop: StopRequest) -> None:
        try:
            await shard.keep()
        except WorkerStopped:  # it was still starting
            if not stop.asked.is_set():
                raise

    def _begin_drain(self, timeout_s: float) -> None:
        self._is_draining = True
        self._note_change()
        text = f"asked to stop: up to {timeout_s:g} s to finish"
        log_event(log, logging.INFO, "draining", text, timeout_s=timeout_s)

    async def _drain(self, timeout_s: float) -> None:
        unfinished: list[str] = []

        async def drain(shard: Shard) -> None:
            if not await shard.supervisor.drain(timeout_s):
                unfinished.append(shard.layers)

        async with plain_task_group() as tasks:
            for shard in self.shards:
                tasks.start_soon(drain, shard)
        if unfinished:
            text = f"not finished in time, and cut off: layers {', '.join(unfinished)}"
            log_event(log, logging.WARNING, "drain_timeout", text, unfinished=unfinished)

    async def _kill_where_urgent(self, stop: StopRequest) -> None:
        await stop.urgent.wait()
        log_event(log, logging.WARNING, "killing", "asked to stop again: every worker is killed now")
        for shard in self.shards:
            shard.supervisor.kill()

    def _note_change(self) -> None:
        self._was_ready = self._was_ready or self.phase is Phase.READY
        self._changed.set()
        self._changed = anyio.Event()
