"""The stages of a route on this machine: one supervised worker each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup

from gguf_worker._tasks import plain_task_group
from gguf_worker.errors import GgufWorkerError, StageLost, WorkerDied
from gguf_worker.generation.stage import Stage
from gguf_worker.generation.stages import check_specs, check_stages
from gguf_worker.protocol.messages import Progress
from gguf_worker.supervision.settings import WorkerSettings
from gguf_worker.supervision.spec import ShardSpec
from gguf_worker.supervision.supervisor import Supervisor
from gguf_worker.supervision.worker import Worker


class LocalSource:
    """A stage whose worker is started again when it dies."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    @property
    def label(self) -> str:
        """The layers that the worker holds."""
        worker = self._supervisor.worker
        if worker is not None:
            return worker.label
        start, end = self._supervisor.spec.layers
        return f"layers {start}:{end}"

    async def get(self, lost: Stage | None = None) -> Worker:
        """The ready worker, or the next one. Raises WorkerDied where a worker is never started again, and
        StageLost where it was given up or stopped."""
        try:
            return await self._supervisor.wait_ready()
        except GgufWorkerError as error:
            report = lost.exit if isinstance(lost, Worker) else self._supervisor.exit
            if report is not None and self._supervisor.settings.restart.max_restarts == 0:
                raise WorkerDied(report) from error
            raise StageLost(
                f"{self.label} will not be ready again: {error.message}", fields=error.fields
            ) from error


class LocalStages:
    """An async context manager around supervisors whose workers form one model.

    The workers start together. Entering raises the first error of any of them, or RouteError where they do
    not form one complete model; no worker is left then. Leaving stops all of them together.
    """

    def __init__(self, supervisors: Sequence[Supervisor]) -> None:
        self.supervisors = tuple(supervisors)
        """One per stage, in order; after it was left they say how each ended."""
        self.sources = tuple(map(LocalSource, self.supervisors))
        self._failure: BaseException | None = None
        self._settled = anyio.Event()
        self._tasks: TaskGroup

    @classmethod
    def of(
        cls,
        specs: Sequence[ShardSpec],
        *,
        settings: WorkerSettings | None = None,
        on_progress: Callable[[int, Progress], None] | None = None,
        on_stderr: Callable[[int, str], None] | None = None,
    ) -> Self:
        """One supervisor for each specification, which is told of how many it is one. Raises RouteError where
        they cannot become one model."""
        check_specs(specs)
        specs = [spec if spec.n_stages else replace(spec, n_stages=len(specs)) for spec in specs]
        return cls(
            [
                Supervisor(
                    spec,
                    settings=settings,
                    on_progress=None if on_progress is None else partial(on_progress, index),
                    on_stderr=None if on_stderr is None else partial(on_stderr, index),
                )
                for index, spec in enumerate(specs)
            ]
        )

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        try:
            for index in range(len(self.supervisors)):
                self._tasks.start_soon(self._keep_stage, index, name=f"stage {index}")
            await self._settled.wait()
            if self._failure is not None:
                raise self._failure
            self._check()
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave()

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The newest worker of each stage, in order; one that died is there until another took its place, and
        its calls raise WorkerDied."""
        return tuple(s.worker for s in self.supervisors if s.worker is not None)

    async def wait_ready(self) -> None:
        """Returns when every stage is ready. Raises as `Supervisor.wait_ready`."""
        async with plain_task_group() as tasks:
            for supervisor in self.supervisors:
                tasks.start_soon(supervisor.wait_ready)

    async def _keep_stage(self, index: int) -> None:
        """Owns one supervisor until the stages are left."""
        try:
            async with self.supervisors[index] as worker:
                if len(self.workers) == len(self.supervisors):
                    self._settled.set()
                await self._watch_until_settled(worker)
                await anyio.sleep_forever()
        except GgufWorkerError as error:
            self._failure = self._failure or error
            self._settled.set()

    async def _watch_until_settled(self, worker: Worker) -> None:
        """A stage that dies while another one still loads ends the start; later, its requests tell."""
        report = await worker.wait_for_end()
        if not self._settled.is_set():
            self._failure = self._failure or WorkerDied(report)
            self._settled.set()

    def _check(self) -> None:
        workers = self.workers
        for worker in workers:
            if worker.exit is not None:
                raise WorkerDied(worker.exit)
        check_stages(
            [worker.identity for worker in workers],
            [worker.ownership for worker in workers],
            workers[0].model.n_layer,
        )

    async def _leave(self) -> None:
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)
