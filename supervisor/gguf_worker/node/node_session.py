"""One session of a backend with all that a node counts of it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from gguf_worker._schema import Buffer
from gguf_worker.errors import GgufWorkerError, RequestError, StageLost
from gguf_worker.logs import log_event
from gguf_worker.node.backend import BackendSession, ModelBackend
from gguf_worker.node.ledger import LedgerEntry, Use, told_to_clients
from gguf_worker.protocol.messages import Output, Result, Sampling
from gguf_worker.work import Work
from gguf_worker_v1 import stage_pb2

log = logging.getLogger(__name__)

T = TypeVar("T")


class NodeSession:
    """A session that is counted. Its calls exclude each other, so that another stream may fork it."""

    def __init__(
        self,
        session: BackendSession,
        *,
        backend: ModelBackend,
        entry: LedgerEntry,
        work: Work,
        layers: tuple[int, int],
        max_tokens: int,
        on_end: Callable[[NodeSession], None],
    ) -> None:
        self.name = secrets.token_hex(16)
        """For forks; nobody can guess it."""
        self.backend = backend
        self.work = work
        self.layers = layers
        """[start, end)."""
        self.telemetry = stage_pb2.StageTelemetry()
        """What it did until now; whoever sends frames adds the time that they took on the node."""
        self.end_reason: str | None = None
        """How it ended; None while it is open, empty where its work may go on elsewhere."""
        self._session = session
        self._entry = entry
        self._max_tokens = max_tokens
        self._on_end = on_end
        self._lock = anyio.Lock(fast_acquire=True)
        self._length = session.position
        self._uncertain = False
        self._loss: StageLost | None = None
        self._freed = 0

    @property
    def length(self) -> int:
        """Rows that its user knows of."""
        return self._length

    @property
    def kv_cells(self) -> int:
        return self._session.kv_cells

    async def forward(
        self,
        request: stage_pb2.Forward,
        hidden: Buffer | None,
        output: Output,
        *,
        bytes_in: int,
        check: Callable[[Result], int],
    ) -> Result:
        """Computes rows, and counts them before it returns. `check` gives the bytes that the answer takes, or
        raises what keeps it from being sent; the session then forgets the rows before anything else is done
        with it, as it does where counting fails (code `ledger`) or the task is cancelled."""
        async with self._lock:
            self._check_open()
            self._check_tokens(len(request.tokens))
            await self._undo()
            self._uncertain = True
            result = await self._compute(request, hidden, output)
            await self._count(result, bytes_in=bytes_in, bytes_out=check(result))
            self._length, self._uncertain = result.length, False
            return result

    async def trim(self, position: int) -> int:
        """Forgets rows; gives the KV cells that became free."""
        async with self._lock:
            self._check_open()
            freed = await self._undo()
            freed += await self._or_lost(self._session.trim(position))
            self._length = position
            return freed

    async def undo(self) -> int:
        """Forgets what was computed of a forward that was cancelled; gives the KV cells that became free."""
        async with self._lock:
            return 0 if self.end_reason is not None else await self._undo()

    async def fork(self, position: int, sampling: Sampling, work: Work) -> BackendSession:
        """Another session with the first rows of this one."""
        async with self._lock:
            self._check_open()
            await self._undo()
            return await self._or_lost(self._session.fork(position, sampling, work))

    async def close(self, reason: str) -> int:
        """As `end`, for a client that wants to know: raises StageLost where the stage is gone."""
        freed = await self.end(reason)
        if self._loss is not None:
            raise self._loss.with_traceback(None)
        return freed

    async def end(self, reason: str) -> int:
        """Ends it and its part of the work; gives the KV cells that became free. Only the first call counts,
        and every call gives what that one freed. Not to be cancelled; the backend bounds it."""
        with anyio.CancelScope(shield=True):
            async with self._lock:
                await self._end(reason)
        return self._freed

    # ---- inside the lock ----

    def _check_open(self) -> None:
        if self._loss is not None:
            raise self._loss.with_traceback(None)
        if self.end_reason is not None:
            raise RequestError("the session was ended; open another one", code="session_closed")

    def _check_tokens(self, count: int) -> None:
        """Before they become millions of objects, which would hold up every other stream."""
        if count > self._max_tokens:
            raise RequestError(
                f"{count} tokens, where the stage takes {self._max_tokens} at once; send fewer rows at once",
                code="argument",
                fields={"expected": str(self._max_tokens), "actual": str(count)},
            )

    async def _compute(self, request: stage_pb2.Forward, hidden: Buffer | None, output: Output) -> Result:
        try:
            return await self._or_lost(
                self._session.forward(
                    position=request.position,
                    tokens=request.tokens or None,
                    hidden=hidden,
                    output=output,
                )
            )
        except RequestError as error:
            self._uncertain = False  # refused or undone: the session is as it was, or it is no more
            if "session_closed" in error.fields:
                await self._end("")
            raise

    async def _count(self, result: Result, *, bytes_in: int, bytes_out: int) -> None:
        use = Use(
            start=self._length,
            rows=result.length - self._length,
            tokens_sampled=int(result.output is Output.TOKEN),
            queue_us=result.queue_us,
            compute_us=result.compute_us,
            bytes_in=bytes_in,
            bytes_out=bytes_out,
        )
        with anyio.CancelScope(shield=True):  # it was computed, whoever has lost interest meanwhile
            with told_to_clients("the rows cannot be counted and are taken back"):
                await self._entry.count(use)
        told = self.telemetry
        told.forwards += 1
        told.rows += use.rows
        told.tokens_sampled += use.tokens_sampled
        told.queue_us += use.queue_us
        told.compute_us += use.compute_us
        told.bytes_in += use.bytes_in
        told.bytes_out += use.bytes_out
        told.batch_rows += result.batch_rows
        told.kv_cells_peak = max(told.kv_cells_peak, self._session.kv_cells)

    async def _undo(self) -> int:
        if not self._uncertain:
            return 0
        try:
            freed = await self._or_lost(self._session.trim(self._length))
        except RequestError as error:
            await self._end("")
            raise RequestError(
                "what was computed of a cancelled forward cannot be undone, so the session was ended: "
                f"{error.message}",
                code="session_closed",
            ) from error
        self._uncertain = False
        return freed

    async def _or_lost(self, answer: Awaitable[T]) -> T:
        """A stage that is gone took the session with it; its work may go on elsewhere."""
        try:
            return await answer
        except StageLost as loss:
            self._loss = loss
            await self._end("")
            raise

    async def _end(self, reason: str) -> None:
        if self.end_reason is not None:
            return
        self.end_reason = reason
        self._on_end(self)
        with anyio.CancelScope(shield=True):
            self._freed = await self._session.close()
            try:
                await self._entry.close(reason)
            except GgufWorkerError as error:
                log_event(
                    log, logging.ERROR, "ledger_error", f"a session's end was not written: {error.message}"
                )
