"""A session: one sequence's KV in one worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio

from gguf_worker._schema import Buffer
from gguf_worker.errors import GgufWorkerError, LocalProtocolError, RequestError
from gguf_worker.logs import bound
from gguf_worker.protocol.messages import Fork, Output, Result, Sampling
from gguf_worker.supervision.ahead import Ahead
from gguf_worker.work import Work

if TYPE_CHECKING:
    from gguf_worker.supervision.worker import Worker

CLOSE_DEADLINE_S = 5.0

OF_EVERY_ROW = (Output.HIDDEN, Output.LOGITS_ALL, Output.EMBEDDING)
"""Outputs that have something of each row, so that each piece of a forward is asked for them."""


class Session:
    """One sequence in one worker; it knows its position. One task at a time uses a session.

    A forward that was cancelled or ran out of time may have been computed or not. The session then forgets,
    before anything else, every row past the position that its user knows of.
    """

    def __init__(
        self,
        *,
        worker: Worker,
        session_id: int,
        position: int,
        sampling: Sampling,
        work: Work | None = None,
    ) -> None:
        self._worker = worker
        self._ahead = Ahead(worker, session_id)
        self._uncertain = False
        self._closed = False
        self.sampling = sampling
        """How it draws tokens, for as long as it is open."""
        self.work = work
        """Whose it is: its ids are in the log lines of the session's requests."""
        self.id = session_id
        """The worker's number for it, never used twice in a worker's life."""
        self.position = position
        """Rows that the session holds: where the next one goes."""

    def __repr__(self) -> str:
        return f"<Session {self.id} position={self.position} worker={self._worker!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()

    async def forward(
        self,
        *,
        tokens: Sequence[int] | None = None,
        hidden: Buffer | None = None,
        output: Output | str,
    ) -> Result:
        """Appends rows and gives what `output` names; more rows than one step takes go in pieces. `hidden`
        may come with the tokens that its rows stand for, which sampling may look at.

        Where a later piece fails, the rows of the earlier ones stay; `position` says how many there are.
        """
        output = Output(output)
        pieces = list(self._pieces(tokens, hidden, self._worker.max_rows(output)))
        results = []
        for index, (some_tokens, some_hidden) in enumerate(pieces):
            last = index == len(pieces) - 1
            results.append(
                await self.forward_piece(
                    tokens=some_tokens,
                    hidden=some_hidden,
                    output=output if last or output in OF_EVERY_ROW else Output.NONE,
                )
            )
        return results[0] if len(results) == 1 else join_results(results)

    async def forward_piece(
        self,
        *,
        tokens: Sequence[int] | None = None,
        hidden: Buffer | None = None,
        output: Output | str,
        more: bool = False,
    ) -> Result:
        """Appends rows in one request, as they are. With `more`, the token that it draws will be the next
        row: a worker that holds the whole model then goes on to it without waiting to be asked.

        Where the model has recurrent state and what was computed cannot be undone, the worker has closed the
        session: the error has the field `session_closed`.
        """
        output = output if type(output) is Output else Output(output)
        if not self._ahead.agrees_with(tokens, hidden, output):
            self._stop_ahead()
        if self._uncertain:
            await self.trim(self.position)
        self._uncertain = True
        try:
            with ids_of(self.work):
                result = await self._ahead.forward(
                    position=self.position, tokens=tokens, hidden=hidden, output=output, more=more
                )
        except (RequestError, LocalProtocolError) as error:
            self._uncertain = False  # refused or undone: the session is as it was, or it is no more
            self._closed = self._closed or "session_closed" in error.fields
            raise
        self._uncertain = False
        self.position = result.length
        return result

    def begin(self, token: int, output: Output) -> None:
        """Has a row computed that `forward_piece` will ask for next. Does not wait, and raises nothing: what
        is wrong is told to whoever asks for it."""
        if self._uncertain or self._closed or self._ahead.is_there:
            return
        with ids_of(self.work):
            self._ahead.begin(position=self.position, token=token, output=output)

    async def fork(self, position: int | None = None, sampling: Sampling | None = None) -> Session:
        """A new session that holds the first `position` rows of this one (all by default), without computing
        them again. It draws as this one does unless `sampling` says otherwise."""
        position = self.position if position is None else position
        self._check_inside(position, "forked at")
        if self._uncertain:
            await self.trim(self.position)
        return await self._worker.open_session(
            sampling=sampling or self.sampling,
            fork=Fork(session=self.id, position=position),
            work=self.work,
        )

    async def trim(self, position: int) -> int:
        """Forgets every row from `position` on; gives the KV cells that became free."""
        self._check_inside(position, "trimmed to")
        self._stop_ahead()
        before, uncertain = self.position, self._uncertain
        # A trim that is cancelled may have happened: only the rows before `position` are certain.
        self.position, self._uncertain = position, True
        try:
            with ids_of(self.work):
                trimmed = await self._worker.trim(session=self.id, position=position)
        except RequestError:
            self.position, self._uncertain = before, uncertain
            raise
        self._uncertain = False
        return trimmed.kv_cells_freed

    async def close(self, finish_reason: str = "") -> int:
        """Ends the session; gives the KV cells that became free, 0 where it was closed before. A worker
        writes no receipt: how the work ended is in the log line of the request only."""
        if self._closed:
            return 0
        self._closed = True
        self._ahead.leave()
        with ids_of(self.work), bound(finish_reason=finish_reason or None):
            return (await self._worker.close_session(session=self.id)).kv_cells_freed

    async def cancel(self, reason: str) -> int:
        """Ends the session at once, also while another task waits for it: that one's request fails with code
        `cancelled`. Gives the KV cells that the session held."""
        for request_id in self._worker.requests_of(self.id):
            await self._worker.cancel(request_id)
        return await self.close(reason)

    async def release(self) -> None:
        """Ends the session whatever happened before: shielded, bounded, and content where the worker is
        gone."""
        with anyio.move_on_after(CLOSE_DEADLINE_S, shield=True):
            try:
                await self.close()
            except GgufWorkerError:
                return  # a worker that is gone or stuck holds no session that anybody could still use

    def _check_inside(self, position: int, what: str) -> None:
        if not 0 <= position <= self.position:
            raise LocalProtocolError(
                f"session {self.id} has {self.position} rows and cannot be {what} {position}",
                fields={"expected": f"0 to {self.position}", "actual": str(position)},
            )

    def _stop_ahead(self) -> None:
        """Whatever was sent ahead is not wanted."""
        self._uncertain = self._ahead.drop() or self._uncertain

    def _pieces(
        self, tokens: Sequence[int] | None, hidden: Buffer | None, most: int
    ) -> Iterator[tuple[Sequence[int] | None, Buffer | None]]:
        row_bytes = self._worker.row_bytes
        rows = None if hidden is None else memoryview(hidden).cast("B") if len(hidden) else memoryview(b"")
        if tokens is not None and rows is not None and len(tokens) * row_bytes != len(rows):
            raise LocalProtocolError(
                f"forward: {len(tokens)} tokens beside {len(rows)} bytes of hidden rows of {row_bytes}; "
                "give one token for each row"
            )
        n_rows = len(tokens or ()) if rows is None else -(-len(rows) // row_bytes)
        for start in range(0, max(1, n_rows), most):
            end = start + most
            yield (
                None if tokens is None else tokens[start:end],
                None if rows is None else rows[start * row_bytes : end * row_bytes],
            )


def ids_of(work: Work | None) -> AbstractContextManager[None]:
    """Adds the ids of a work to every log line inside."""
    return nullcontext() if work is None else bound(request_id=work.request_id, work_id=work.work_id)


def join_results(results: Sequence[Result]) -> Result:
    """The results of pieces that followed each other, as one."""
    last = results[-1]
    return Result(
        session=last.session,
        length=last.length,
        kv_cells=sum(result.kv_cells for result in results),
        output=last.output,
        queue_us=sum(result.queue_us for result in results),
        compute_us=sum(result.compute_us for result in results),
        batch_rows=max(result.batch_rows for result in results),
        rows=sum(result.rows for result in results),
        columns=last.columns,
        dtype=last.dtype,
        hidden=None if last.hidden is None else b"".join(result.hidden or b"" for result in results),
        logits=None if last.logits is None else b"".join(result.logits or b"" for result in results),
        embedding=None if last.embedding is None else b"".join(one.embedding or b"" for one in results),
        token=last.token,
        logprob=last.logprob,
        end_of_generation=last.end_of_generation,
        text=last.text,
        top=last.top,
    )
