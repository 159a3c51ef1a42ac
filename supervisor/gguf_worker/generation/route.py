"""A route: supervised workers in order that hold one complete model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup

from gguf_worker._tasks import plain_task_group
from gguf_worker.errors import GgufWorkerError, WorkerDied
from gguf_worker.generation.chain import SessionChain
from gguf_worker.generation.generate import Generation
from gguf_worker.generation.stages import check_specs, check_stages
from gguf_worker.protocol.messages import Progress, Sampling
from gguf_worker.supervision.settings import WorkerSettings
from gguf_worker.supervision.spec import ShardSpec
from gguf_worker.supervision.supervisor import Supervisor
from gguf_worker.supervision.worker import Worker


class Route:
    """An async context manager around the stages of one model:

        async with Route.start([ShardSpec(path, layers=(0, 16)), ShardSpec(path, layers=(16, 0))]) as route:
            async for step in route.generate(await route.tokenize("Hello"), max_tokens=64): ...

    The workers start together. Entering raises the first error of any of them, or RouteError where they do
    not form one complete model; no worker is left then. Leaving it stops all of them together.
    """

    def __init__(self, supervisors: Sequence[Supervisor]) -> None:
        self.supervisors = tuple(supervisors)
        """One per stage, in order; after the route was left they say how each ended."""
        self._failure: BaseException | None = None
        self._settled = anyio.Event()
        self._tasks: TaskGroup

    @classmethod
    def start(
        cls,
        specs: Sequence[ShardSpec],
        *,
        settings: WorkerSettings | None = None,
        on_progress: Callable[[int, Progress], None] | None = None,
        on_stderr: Callable[[int, str], None] | None = None,
    ) -> Self:
        """A route of these shards; the callbacks get the stage's number first. Raises RouteError where the
        specifications cannot become one model; nothing is started before the route is entered."""
        check_specs(specs)
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

    def __repr__(self) -> str:
        return f"<Route {' -> '.join(map(repr, self.supervisors))}>"

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

    # ---- what it is ----

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The newest worker of each stage, in order; one that died is there until another took its place, and
        its calls raise WorkerDied."""
        return tuple(s.worker for s in self.supervisors if s.worker is not None)

    @property
    def tokenizer(self) -> Worker | None:
        """The first stage that has a vocabulary."""
        return next((worker for worker in self.workers if worker.ownership.vocabulary), None)

    # ---- what it does ----

    async def wait_ready(self) -> None:
        """Returns when every stage is ready, again where it was before: with the identity that it had. Raises
        as `Supervisor.wait_ready`."""
        async with plain_task_group() as tasks:
            for supervisor in self.supervisors:
                tasks.start_soon(supervisor.wait_ready)

    async def tokenize(self, text: str | bytes, *, add_special: bool = True) -> list[int]:
        """The tokens of a text. Where no stage has a vocabulary, the last one refuses: code `not_owned`."""
        return await (self.tokenizer or self.workers[-1]).tokenize(text, add_special=add_special)

    def generate(
        self, tokens: Sequence[int], *, max_tokens: int, sampling: Sampling | None = None
    ) -> Generation:
        """Continues `tokens` by at most `max_tokens`; greedy unless `sampling` says otherwise."""
        return Generation(self.workers, tokens, max_tokens=max_tokens, sampling=sampling or Sampling())

    @asynccontextmanager
    async def open_chain(self, *, sampling: Sampling | None = None) -> AsyncIterator[SessionChain]:
        """One session on each stage, for callers that drive the steps themselves."""
        async with await SessionChain.open(self.workers, sampling) as chain:
            yield chain

    # ---- its stages ----

    async def _keep_stage(self, index: int) -> None:
        """Owns one supervisor until the route is left."""
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
