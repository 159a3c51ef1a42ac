"""One sequence through all stages of a route."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import anyio

from gguf_worker._tasks import plain_task_group
from gguf_worker.errors import LocalProtocolError, StageLost
from gguf_worker.generation.deadline import before_deadline
from gguf_worker.generation.history import History, Piece
from gguf_worker.generation.link import Link
from gguf_worker.generation.record import StageRecord
from gguf_worker.generation.replay import Losses, Replay
from gguf_worker.generation.rows import BoundaryRows, least_useful
from gguf_worker.generation.stage import Stage, StageSession, StageSource
from gguf_worker.protocol.messages import Output, Result, Sampling
from gguf_worker.supervision.session import OF_EVERY_ROW, join_results
from gguf_worker.work import Work

CHUNKS_AHEAD = 2
"""How far a stage computes ahead of the next one, in prefill chunks: enough that both compute, and bounded in
memory."""


@dataclass(slots=True, kw_only=True)
class Run:
    """What one forward wants of the last stage."""

    start: int
    """Its first row; pieces before it are only there to be computed again."""
    output: Output
    more: bool
    """Whether the token that it draws will be the next row."""
    results: dict[int, Result] = field(default_factory=dict)
    """By the first row of a piece."""

    def wanted(self, piece: Piece, end: int) -> Output:
        """What the last stage is asked for with a piece of a sequence that ends at `end`."""
        if piece.start < self.start or piece.start in self.results:
            return Output.NONE
        return self.output if piece.end == end or self.output in OF_EVERY_ROW else Output.NONE

    def take(self, piece: Piece, result: Result) -> None:
        """Keeps a result; the one of a piece that was computed before stands."""
        if piece.start >= self.start:
            self.results.setdefault(piece.start, result)

    def result(self) -> Result:
        """All of it as one."""
        if len(self.results) == 1:
            return next(iter(self.results.values()))
        return join_results([self.results[start] for start in sorted(self.results)])


class SessionChain:
    """One session per stage. Boundary rows go from stage to stage as they came, without a copy.

    A stage that is lost is filled again from its source, and given the same rows in the same pieces, from
    the boundary rows that were kept, or else from what the stages before it compute again. The forward that
    met the loss then goes on: whoever waits for it sees a pause. How often that is done, how long it may take
    and how much is kept is up to the route's `ReplaySettings`; past them it is StageLost.

    Where a forward fails or is cancelled, stages may have come to different lengths; each of them then
    forgets what it computed of it before it does anything else. Stages with recurrent state cannot
    (`can_trim` is false): such a chain then refuses to go on, with code `unsupported`, until it is trimmed
    to 0.

    An async context manager: leaving it ends the sessions.
    """

    def __init__(self, links: Sequence[Link], replay: Replay, work: Work | None) -> None:
        self._links = list(links)
        self._replay = replay
        self._work = work
        self._history = History()
        self._rows = [BoundaryRows(replay.budget) for _ in self._links[1:]]
        self._moved = anyio.Event()

    @classmethod
    async def open(
        cls,
        sources: Sequence[StageSource],
        sampling: Sampling | None = None,
        *,
        work: Work | None = None,
        replay: Replay | None = None,
    ) -> Self:
        """Opens a session on each stage; where one cannot be had, none stays open."""
        replay = replay or Replay()
        losses = Losses(replay.settings)
        links = [
            Link(source, sampling=sampling or Sampling(), work=work, replay=replay, losses=losses)
            for source in sources
        ]
        chain = cls(links, replay, work)
        try:
            with before_deadline(work):
                await chain._each(lambda link: link.open())
        except BaseException:
            await chain.release()
            raise
        return chain

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()

    # ---- its end ----

    async def close(self, finish_reason: str) -> None:
        """Ends the sessions and tells the stages how the work ended. Shielded and bounded; what each stage
        acknowledged is in its record."""
        await self._end(lambda session: session.close(finish_reason))

    async def cancel(self, reason: str) -> None:
        """Ends the sessions with whatever they compute, as `close` does."""
        await self._end(lambda session: session.cancel(reason))

    async def release(self) -> None:
        """Ends the sessions whatever happened before. Those that were ended already are left alone."""
        for rows in self._rows:
            rows.clear()
        with anyio.CancelScope(shield=True):
            await self._each(lambda link: link.release())

    async def _end(self, how: Callable[[StageSession], Awaitable[int]]) -> None:
        with anyio.CancelScope(shield=True):
            await self._each(lambda link: link.end(how))

    # ---- what it is ----

    @property
    def sessions(self) -> tuple[StageSession, ...]:
        """One per stage, in order. Whoever moves one of them by itself moves all of them."""
        return tuple(link.session for link in self._links)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Whose sessions these are, in order."""
        return tuple(link.stage for link in self._links)

    @property
    def records(self) -> list[StageRecord]:
        """What each place did so far, live."""
        return [link.record for link in self._links]

    @property
    def position(self) -> int:
        """Rows that every stage holds, or will be given before anything else."""
        return self._history.position

    @property
    def tokens(self) -> tuple[int, ...]:
        """What these rows stand for."""
        return self._history.tokens

    @property
    def n_ctx(self) -> int:
        """Most rows that it can have."""
        return min(stage.n_ctx for stage in self.stages)

    # ---- what it does ----

    async def forward(self, tokens: Sequence[int], output: Output | str, *, more: bool = False) -> Result:
        """Appends tokens and gives what `output` names, from the last stage. With `more`, the token that it
        draws will be the next row: the first stage does not wait to be asked for it."""
        output = output if type(output) is Output else Output(output)
        run = Run(start=self._history.position, output=output, more=more)
        try:
            piece = self._add(tokens, run.output)
            with before_deadline(self._work):
                if piece is None or not await self._straight(piece, run):
                    await self._level(run)
        except BaseException:
            self._forget(run.start)
            raise
        return run.result()

    async def fork(self, position: int | None = None, sampling: Sampling | None = None) -> SessionChain:
        """A new chain that holds the first `position` rows of this one (all by default) on every stage,
        without computing them again. It draws as this one does unless `sampling` says otherwise."""
        position = self.position if position is None else position
        self._check_inside(position, "forked at")
        with before_deadline(self._work):
            while True:
                await self._level(Run(start=self.position, output=Output.NONE, more=False))
                try:
                    return await self._fork(position, sampling)
                except StageLost:
                    continue  # it is brought back, or that is refused, before the next attempt

    async def trim(self, position: int) -> None:
        """Forgets every row from `position` on, on every stage."""
        self._check_inside(position, "trimmed to")
        self._forget(position)
        for link in self._links:
            if link.is_filled:
                with suppress(StageLost):  # it is given what is left before it is used again
                    await link.settle()

    def _check_inside(self, position: int, what: str) -> None:
        if not 0 <= position <= self.position:
            raise LocalProtocolError(
                f"the chain has {self.position} rows and cannot be {what} {position}",
                fields={"expected": f"0 to {self.position}", "actual": str(position)},
            )

    def _forget(self, position: int) -> None:
        """The stages follow before they do anything else."""
        self._history.trim(position)
        for rows in self._rows:
            rows.trim(position)
        for link in self._links:
            link.clip(position)

    async def _fork(self, position: int, sampling: Sampling | None) -> SessionChain:
        losses = Losses(self._replay.settings)
        links = [link.twin(sampling, losses) for link in self._links]
        fork = SessionChain(links, self._replay, self._work)
        fork._history = self._history.fork(position)
        fork._rows = [rows.fork(position) for rows in self._rows]
        try:
            for link, twin in zip(self._links, links, strict=True):
                twin.take_fork(link, await link.fork(position, sampling), position)
        except BaseException:
            await fork.release()
            raise
        return fork

    # ---- how rows go through it ----

    def _most_rows(self, output: Output) -> int:
        """Rows of a piece: one prefill chunk where there are several stages, so that they soon have
        something to do at the same time."""
        *others, last = self.stages
        if not others:
            return last.max_rows(output)
        hidden = (stage.max_rows(Output.HIDDEN) for stage in others)
        return min(others[0].prefill_chunk, last.max_rows(output), *hidden)

    def _add(self, tokens: Sequence[int], output: Output) -> Piece | None:
        """Adds them to the history, in pieces; gives the piece where it is one."""
        most = self._most_rows(output) if len(tokens) > 1 else 1
        if len(tokens) <= most:
            return self._history.add(tokens)
        for start in range(0, len(tokens), most):
            self._history.add(tokens[start : start + most])
        return None

    async def _straight(self, piece: Piece, run: Run) -> bool:
        """One piece through one stage after the other: a decode step waits for nothing else. False where a
        stage is not at the piece, or is lost: `_level` finds what is missing then, and brings it back."""
        if not self._is_level(piece.start):
            return False
        try:
            for index in range(len(self._links)):
                self._take(index, piece, run, await self._give(index, piece, run))
        except StageLost:
            return False
        return True

    async def _level(self, run: Run) -> None:
        """Every stage computes what it lacks, at the same time."""
        if self._is_level(self.position):
            return
        async with plain_task_group() as tasks:
            for index in range(len(self._links)):
                tasks.start_soon(self._keep_up, index, run)

    def _is_level(self, position: int) -> bool:
        for link in self._links:  # noqa: SIM110 - a generator costs several times as much, for each token
            if link.position != position or not link.is_filled:
                return False
        return True

    async def _keep_up(self, index: int, run: Run) -> None:
        """Moves one stage until all of them hold the whole sequence: until then the stage behind it may be
        lost, and need its rows once more."""
        link = self._links[index]
        while not self._is_level(self.position):
            moved = self._moved
            if not link.is_filled:
                await link.fill()
                self._shorten(link, run)
            elif link.must_rewind:
                with suppress(StageLost):  # the link knows, and is filled again next
                    await link.rewind()
            elif self._may_advance(index):
                piece = self._history.at(link.position)
                with suppress(StageLost):
                    self._take(index, piece, run, await self._give(index, piece, run))
            else:
                await moved.wait()
                continue
            self._tell()

    def _tell(self) -> None:
        """Something moved."""
        self._moved.set()
        self._moved = anyio.Event()

    def _may_advance(self, index: int) -> bool:
        """Whether there is a piece to compute and its rows are here. Rows that were there and are gone are
        asked of the stage before."""
        link = self._links[index]
        if link.position == self.position:
            return False
        piece = self._history.at(link.position)
        if index and self._rows[index - 1].get(piece) is None:
            before = self._links[index - 1]
            if before.position > piece.start and not before.must_rewind:
                before.must_rewind = True
                self._tell()
            return False
        return not self._is_ahead(index, piece)

    def _is_ahead(self, index: int, piece: Piece) -> bool:
        if index + 1 == len(self._links):
            return False
        ahead = piece.start - self._links[index + 1].position
        return ahead > CHUNKS_AHEAD * self._links[0].stage.prefill_chunk

    def _give(self, index: int, piece: Piece, run: Run) -> Coroutine[Any, Any, Result]:
        """One stage computes its next piece."""
        is_last = index + 1 == len(self._links)
        hidden = self._rows[index - 1].get(piece) if index else None
        output = run.wanted(piece, self.position) if is_last else self._boundary_output(index, piece)
        more = run.more and len(self._links) == 1 and piece.end == self.position
        return self._links[index].compute(piece, hidden, output, is_last=is_last, more=more)

    def _take(self, index: int, piece: Piece, run: Run, result: Result) -> None:
        """What it gave goes to whoever wants it."""
        if index:
            self._rows[index - 1].consumed(piece)
        if index + 1 == len(self._links):
            run.take(piece, result)
            if run.more and index and piece.end == self.position and not result.end_of_generation:
                self._links[0].begin(result.token)
        elif result.hidden is not None:
            self._keep(index, piece, result)

    def _boundary_output(self, index: int, piece: Piece) -> Output:
        """Rows that the stage behind has, or can get, are not asked for again."""
        has_computed = self._links[index + 1].position > piece.start
        is_there = self._rows[index].get(piece) is not None
        return Output.NONE if has_computed or is_there else Output.HIDDEN

    # ---- what is kept of them ----

    def _keep(self, index: int, piece: Piece, result: Result) -> None:
        assert result.hidden is not None
        rows = self._rows[index]
        while rows.is_kept and not self._replay.budget.take(len(result.hidden)):
            self._keep_less()
        rows.put(piece, result.hidden)

    def _keep_less(self) -> None:
        index = least_useful([rows.is_kept for rows in self._rows])
        self._rows[index].stop_keeping(self._links[index + 1].position)

    def _shorten(self, filled: Link, run: Run) -> None:
        """Makes fewer pieces of what one stage computes again, where that changes no bit. What other stages
        are at stays as it is."""
        if not self._replay.chunk_invariant:
            return
        others = [link.position for link in self._links if link.is_filled and link is not filled]
        most = min(stage.max_rows(Output.HIDDEN) for stage in self.stages)
        groups = self._history.merge(min([run.start, *others]), most)
        for rows in self._rows:
            rows.merge(groups)

    async def _each(self, what: Callable[[Link], Coroutine[Any, Any, None]]) -> None:
        """The same for every link, at the same time."""
        if len(self._links) == 1:
            await what(self._links[0])
            return
        async with plain_task_group() as tasks:
            for link in self._links:
                tasks.start_soon(what, link)
