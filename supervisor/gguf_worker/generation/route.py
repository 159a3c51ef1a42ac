"""A route: stages in order that hold one complete model, here or on other machines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self, TypeVar

from gguf_worker.errors import StageLost
from gguf_worker.generation.chain import SessionChain
from gguf_worker.generation.generate import Generation
from gguf_worker.generation.local import LocalStages
from gguf_worker.generation.replay import Replay, ReplaySettings
from gguf_worker.generation.stage import Stage, StageSource
from gguf_worker.protocol.messages import Progress, Sampling
from gguf_worker.supervision.settings import WorkerSettings
from gguf_worker.supervision.spec import ShardSpec
from gguf_worker.supervision.supervisor import Supervisor
from gguf_worker.supervision.worker import Worker
from gguf_worker.work import Work

T = TypeVar("T")


class Route:
    """An async context manager around the stages of one model:

        async with Route.start([ShardSpec(path, layers=(0, 16)), ShardSpec(path, layers=(16, 0))]) as route:
            async for step in route.generate(await route.tokenize("Hello"), max_tokens=64): ...

    `Route.start` starts workers on this machine; leaving the route stops them. A route over other sources is
    as long there as they are, whose owner also sees to it that they form one model.

    A route outlives its stages: one that is lost while it generates is brought back and given what it
    needs, and the text goes on as if nothing had been (see `ReplaySettings`). `chunk_invariant` says that a
    certificate found rows to have the same bits whatever they are computed with; bringing back is then
    faster.
    """

    def __init__(
        self,
        sources: Sequence[StageSource],
        *,
        replay: ReplaySettings | None = None,
        chunk_invariant: bool = False,
        local: LocalStages | None = None,
    ) -> None:
        self.sources = tuple(sources)
        """One per stage, in order."""
        self.replay = Replay(replay, chunk_invariant=chunk_invariant)
        """What its sequences share for stages that are lost."""
        self._local = local

    @classmethod
    def start(
        cls,
        specs: Sequence[ShardSpec],
        *,
        settings: WorkerSettings | None = None,
        replay: ReplaySettings | None = None,
        chunk_invariant: bool = False,
        on_progress: Callable[[int, Progress], None] | None = None,
        on_stderr: Callable[[int, str], None] | None = None,
    ) -> Self:
        """A route of these shards; the callbacks get the stage's number first. Raises RouteError where the
        specifications cannot become one model; nothing is started before the route is entered. Entering
        raises the first error of any worker, or RouteError where they do not form one complete model; no
        worker is left then."""
        local = LocalStages.of(specs, settings=settings, on_progress=on_progress, on_stderr=on_stderr)
        return cls(local.sources, replay=replay, chunk_invariant=chunk_invariant, local=local)

    def __repr__(self) -> str:
        shown = map(repr, self.supervisors) if self._local else (source.label for source in self.sources)
        return f"<Route {' -> '.join(shown)}>"

    async def __aenter__(self) -> Self:
        if self._local is not None:
            await self._local.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._local is not None:
            await self._local.__aexit__(kind, error, trace)

    # ---- what it is ----

    @property
    def supervisors(self) -> tuple[Supervisor, ...]:
        """Of the workers that it started, in order; after the route was left they say how each ended."""
        return () if self._local is None else self._local.supervisors

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The newest worker of each stage that it started, in order; one that died is there until another
        took its place, and its calls raise WorkerDied."""
        return () if self._local is None else self._local.workers

    async def stages(self) -> tuple[Stage, ...]:
        """The stages that are ready now, in order; waits for those that are not."""
        return tuple([await source.get() for source in self.sources])

    async def wait_ready(self) -> None:
        """Returns when every stage is ready, again where it was before: with the identity that it had. Raises
        as `Supervisor.wait_ready`."""
        if self._local is not None:
            await self._local.wait_ready()
        else:
            await self.stages()

    # ---- what it does ----

    async def tokenize(
        self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """The tokens of a text. Where no stage has a vocabulary, the last one refuses: code `not_owned`."""
        return await self._ask_vocabulary(
            lambda stage: stage.tokenize(text, add_special=add_special, parse_special=parse_special)
        )

    async def detokenize(
        self, tokens: Sequence[int], *, remove_special: bool = False, unparse_special: bool = False
    ) -> bytes:
        """The text of tokens; it may end inside a UTF-8 sequence. Refused as `tokenize` is."""
        return await self._ask_vocabulary(
            lambda stage: stage.detokenize(
                tokens, remove_special=remove_special, unparse_special=unparse_special
            )
        )

    async def chat_template(self) -> str:
        """The artifact's own template, in Jinja's language; empty where it has none."""
        return await self._ask_vocabulary(lambda stage: stage.chat_template())

    def generate(
        self,
        tokens: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling | None = None,
        work: Work | None = None,
    ) -> Generation:
        """Continues `tokens` by at most `max_tokens`; greedy unless `sampling` says otherwise. The ids and
        the deadline of `work` go to every stage."""
        return Generation(
            self._open, tokens, max_tokens=max_tokens, sampling=sampling or Sampling(), work=work or Work()
        )

    @asynccontextmanager
    async def open_chain(
        self, *, sampling: Sampling | None = None, work: Work | None = None
    ) -> AsyncIterator[SessionChain]:
        """One session on each stage, for callers that drive the steps themselves."""
        async with await self._open(sampling or Sampling(), work) as chain:
            yield chain

    async def _open(self, sampling: Sampling, work: Work | None) -> SessionChain:
        return await SessionChain.open(self.sources, sampling, work=work, replay=self.replay)

    async def _ask_vocabulary(self, ask: Callable[[Stage], Awaitable[T]]) -> T:
        """Asks the first stage that has one, and again where that stage is lost meanwhile, as often as a
        sequence outlives."""
        lost: Stage | None = None
        for _ in range(self.replay.settings.max_losses):
            stage = await self._with_vocabulary(lost)
            try:
                return await ask(stage)
            except StageLost:
                lost = stage
        return await ask(await self._with_vocabulary(lost))

    async def _with_vocabulary(self, lost: Stage | None) -> Stage:
        for source in self.sources:
            stage = await source.get()
            if stage is lost:
                stage = await source.get(lost)
            if stage.vocabulary is not None:
                return stage
        return stage
