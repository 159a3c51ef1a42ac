"""One shard that is served: its supervisor, its last ends, and the moment by which it must move on."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import anyio

from gguf_worker._tasks import plain_task_group
from gguf_worker.serving.journal import Journal
from gguf_worker.serving.liveness import allowance
from gguf_worker.supervision.events import GaveUp, ObservedEvent, StateChanged, WorkerEnded
from gguf_worker.supervision.lifecycle import WorkerState
from gguf_worker.supervision.metrics import Metrics
from gguf_worker.supervision.settings import WorkerSettings
from gguf_worker.supervision.spec import ShardSpec
from gguf_worker.supervision.supervisor import Supervisor

ENDS_KEPT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at a shard."""

    layers: str
    metrics: Metrics
    ends: tuple[WorkerEnded, ...]
    """The last processes that ended, oldest first; the stops that were asked for included."""


class Shard:
    """A supervised shard whose events are logged."""

    def __init__(
        self,
        spec: ShardSpec,
        settings: WorkerSettings,
        on_change: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        start, end = spec.layers
        self.layers = f"{start}:{end}"
        self.supervisor = Supervisor(spec, settings=settings)
        self._settings = settings
        self._on_change = on_change
        self._clock = clock
        self._journal = Journal(self.layers)
        self._ends: deque[WorkerEnded] = deque(maxlen=ENDS_KEPT)
        self._due = math.inf

    @property
    def state(self) -> WorkerState:
        return self.supervisor.state

    @property
    def is_live(self) -> bool:
        """Whether its supervisor takes care of it: nothing is overdue."""
        return self._clock() < self._due

    async def look(self) -> Look:
        return Look(layers=self.layers, metrics=await self.supervisor.metrics(), ends=tuple(self._ends))

    async def keep(self) -> None:
        """Runs it until this is cancelled. Raises why the worker was given up, or could not be started."""
        async with plain_task_group() as tasks:
            tasks.start_soon(self._follow, name=f"events of layers {self.layers}")
            await self._keep()

    async def _keep(self) -> None:
        events = self.supervisor.events()
        async with self.supervisor:
            await events.wait_for(GaveUp)
            assert self.supervisor.failure is not None
            raise self.supervisor.failure.with_traceback(None)

    async def _follow(self) -> None:
        """Takes every event up to the last one; shielded, because most come while it is being stopped."""
        with anyio.CancelScope(shield=True):
            async for event in self.supervisor.events():
                self._take(event)

    def _take(self, event: ObservedEvent) -> None:
        allowed_s = allowance(event, self._settings)
        if allowed_s is not None:
            self._due = self._clock() + allowed_s
        if isinstance(event, WorkerEnded):
            self._ends.append(event)
        self._journal.take(event)
        if isinstance(event, StateChanged):
            self._on_change()
