"""One sequence through all stages of a route."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from gguf_worker._schema import Buffer
from gguf_worker._tasks import plain_task_group
from gguf_worker.errors import LocalProtocolError
from gguf_worker.protocol.messages import Output, Result, Sampling
from gguf_worker.supervision.session import Session, join_results
from gguf_worker.supervision.worker import Worker

PIECES_BETWEEN_STAGES = 1
"""Pieces of a prefill that wait between two stages: enough that both compute, and bounded in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows on their way from one stage to the next, with the tokens that they stand for."""

    tokens: Sequence[int]
    hidden: Buffer | None = None
    """None on the way to the first stage."""
    is_last: bool


class SessionChain:
    """One session per stage. Boundary rows go from stage to stage as they came, without a copy.

    Where a forward fails or is cancelled, stages may have come to different lengths; all of them then
    forget what they computed of it before anything else is done. Stages with recurrent state cannot
    (`capacity.can_trim` is false): such a chain then refuses to go on, with code `unsupported`, until it is
    trimmed to 0.

    An async context manager: leaving it ends the sessions.
    """

    def __init__(self, sessions: Sequence[Session], workers: Sequence[Worker]) -> None:
        self._sessions = list(sessions)
        self._workers = list(workers)
        self._trim_first: int | None = None

    @classmethod
    async def open(cls, workers: Sequence[Worker], sampling: Sampling | None = None) -> Self:
        """Opens a session on each worker; where one cannot be had, those before it are ended."""
        return cls(await _all(worker.open_session(sampling=sampling) for worker in workers), workers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()

    async def release(self) -> None:
        """Ends the sessions whatever happened before, the last stage's first."""
        for session in reversed(self._sessions):
            await session.release()

    @property
    def sessions(self) -> tuple[Session, ...]:
        """One per stage, in order. Whoever moves one of them by itself moves all of them."""
        return tuple(self._sessions)

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Whose sessions these are, in order."""
        return tuple(self._workers)

    @property
    def position(self) -> int:
        """Rows that every stage holds."""
        return self._sessions[-1].position if self._trim_first is None else self._trim_first

    async def forward(self, tokens: Sequence[int], output: Output | str) -> Result:
        """Appends tokens and gives what `output` names, from the last stage."""
        if self._trim_first is not None:
            await self.trim(self._trim_first)
        start, output = self.position, Output(output)
        try:
            return await self._forward(tokens, output)
        except BaseException:
            self._trim_first = start
            raise

    async def fork(self, position: int | None = None, sampling: Sampling | None = None) -> SessionChain:
        """A new chain that holds the first `position` rows of this one (all by default) on every stage,
        without computing them again. It draws as this one does unless `sampling` says otherwise."""
        position = self.position if position is None else position
        self._check_inside(position, "forked at")
        if self._trim_first is not None:
            await self.trim(self._trim_first)
        forks = await _all(session.fork(position, sampling) for session in self._sessions)
        return SessionChain(forks, self._workers)

    async def trim(self, position: int) -> None:
        """Forgets every row from `position` on, on every stage."""
        self._check_inside(position, "trimmed to")
        self._trim_first = position
        for session in self._sessions:
            await session.trim(position)
        self._trim_first = None

    def _check_inside(self, position: int, what: str) -> None:
        if not 0 <= position <= self.position:
            raise LocalProtocolError(
                f"the chain has {self.position} rows and cannot be {what} {position}",
                fields={"expected": f"0 to {self.position}", "actual": str(position)},
            )

    async def _forward(self, tokens: Sequence[int], output: Output) -> Result:
        if len(self._sessions) == 1:
            return await self._sessions[0].forward(tokens=tokens, output=output)
        pieces = self._pieces(tokens, output)
        if len(pieces) > 1:
            return await self._forward_pieces(pieces, output)
        piece = pieces[0]
        for session in self._sessions[:-1]:
            piece = await _boundary(session, piece)
        return await _last(self._sessions[-1], piece, output)

    def _pieces(self, tokens: Sequence[int], output: Output) -> list[Piece]:
        """One prefill chunk each, so that the stages soon have something to do at the same time."""
        most = min(
            self._workers[0].identity.recipe.prefill_chunk,
            *(worker.max_rows(Output.HIDDEN) for worker in self._workers[:-1]),
            self._workers[-1].max_rows(output),
        )
        starts = range(0, max(1, len(tokens)), most)
        return [Piece(tokens=tokens[start : start + most], is_last=start == starts[-1]) for start in starts]

    async def _forward_pieces(self, pieces: Sequence[Piece], output: Output) -> Result:
        """Each stage computes one piece while the stage before it computes the next one."""
        results: list[Result] = []
        async with plain_task_group() as tasks:
            first, source = anyio.create_memory_object_stream[Piece](len(pieces))
            with first:
                for piece in pieces:
                    first.send_nowait(piece)
            for session in self._sessions[:-1]:
                sink, next_source = anyio.create_memory_object_stream[Piece](PIECES_BETWEEN_STAGES)
                tasks.start_soon(_run_boundary, session, source, sink)
                source = next_source
            tasks.start_soon(_run_last, self._sessions[-1], source, output, results)
        return join_results(results)


async def _all(opening: Iterable[Awaitable[Session]]) -> list[Session]:
    """Opens one session after the other; where one cannot be had, none stays open."""
    async with AsyncExitStack() as opened:
        sessions = []
        for one in opening:
            session = await one
            opened.push_async_callback(session.release)
            sessions.append(session)
        opened.pop_all()
    return sessions


async def _run_boundary(
    session: Session, source: MemoryObjectReceiveStream[Piece], sink: MemoryObjectSendStream[Piece]
) -> None:
    with source, sink:
        async for piece in source:
            await sink.send(await _boundary(session, piece))


async def _run_last(
    session: Session, source: MemoryObjectReceiveStream[Piece], output: Output, results: list[Result]
) -> None:
    with source:
        async for piece in source:
            results.append(await _last(session, piece, output))


async def _boundary(session: Session, piece: Piece) -> Piece:
    """Through a stage that draws nothing, and so has no use for tokens beside hidden rows."""
    tokens = piece.tokens if piece.hidden is None else None
    result = await session.forward_piece(tokens=tokens, hidden=piece.hidden, output=Output.HIDDEN)
    return Piece(tokens=piece.tokens, hidden=result.hidden, is_last=piece.is_last)


async def _last(session: Session, piece: Piece, output: Output) -> Result:
    wanted = output if piece.is_last or output is Output.LOGITS_ALL else Output.NONE
    return await session.forward_piece(tokens=piece.tokens, hidden=piece.hidden, output=wanted)
