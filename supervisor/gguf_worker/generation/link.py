"""One place of a chain: the stage and the session that fill it now, and what it takes to fill it again."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import anyio

from gguf_worker._schema import Buffer
from gguf_worker.errors import GgufWorkerError, StageLost
from gguf_worker.generation.history import Piece
from gguf_worker.generation.record import StageRecord
from gguf_worker.generation.replay import Loss, Losses, Replay
from gguf_worker.generation.stage import Stage, StageSession, StageSource
from gguf_worker.logs import log_event
from gguf_worker.protocol.messages import Output, Result, Sampling
from gguf_worker.work import Work

log = logging.getLogger("gguf_worker.generation")

END_TIMEOUT_S = 5.0
"""How long the end of a session may take; nobody waits for a stage that does not say more."""
SETTLED = "work_settled"
"""Code of a stage that has written the receipt of a work."""
RETRY_FIRST_S, RETRY_MOST_S = 0.05, 1.0
"""Between two attempts to open a session where there was no room for it."""


class Link:
    """A place. One task at a time moves it."""

    def __init__(
        self,
        source: StageSource,
        *,
        sampling: Sampling,
        work: Work | None,
        replay: Replay,
        losses: Losses,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.source = source
        self.sampling = sampling
        self.work = work
        self.record = StageRecord(label=source.label)
        self.position = 0
        """Rows of the sequence that it holds. The session may hold more, which nobody wants: they are
        forgotten before it is used again."""
        self.is_filled = False
        """False before it was opened, and from a loss until it is filled again."""
        self.must_rewind = False
        """Its rows are needed again from the first on."""
        self._replay = replay
        self._losses = losses
        self._clock = clock
        self._stage: Stage | None = None
        self._session: StageSession | None = None
        self._reached = 0
        self._lost_at: float | None = None

    @property
    def stage(self) -> Stage:
        """Who fills it, or did last."""
        assert self._stage is not None, "it was opened"
        return self._stage

    @property
    def session(self) -> StageSession:
        """The one in `stage`; of no use while it is not filled."""
        assert self._session is not None, "it was opened"
        return self._session

    def twin(self, sampling: Sampling | None, losses: Losses) -> Link:
        """The same place in another chain, not filled."""
        return Link(
            self.source,
            sampling=sampling or self.sampling,
            work=self.work,
            replay=self._replay,
            losses=losses,
            clock=self._clock,
        )

    # ---- filling it ----

    async def open(self) -> None:
        """Fills it for the first time. Raises what the source and the stage raise."""
        self._stage = await self.source.get()
        try:
            self._session = await self.stage.open_session(sampling=self.sampling, work=self.work)
        except StageLost as error:
            self._lose(error)
            await self.fill()
        else:
            self._take()

    async def fill(self) -> None:
        """Fills it again after a loss, with an empty session. Raises StageLost where it cannot be: too many
        losses, no other stage, or none in time."""
        if self._session is not None:
            await self._session.release()
        with anyio.move_on_after(self._replay.settings.wait_s) as scope:
            await self._fill()
        if scope.cancelled_caught:
            wait_s = self._replay.settings.wait_s
            raise StageLost(
                f"{self.source.label} did not come back within {wait_s:g} s (ReplaySettings.wait_s)",
                fields={"wait_s": f"{wait_s:g}"},
            )

    async def _fill(self) -> None:
        lost, delay_s = self.stage, RETRY_FIRST_S
        while True:
            self._losses.check(self._clock())
            self._stage = await self.source.get(lost=lost)
            self.work = None if self.work is None else self.work.again()
            try:
                self._session = await self.stage.open_session(sampling=self.sampling, work=self.work)
            except StageLost as error:
                lost = self.stage
                self._lose(error)
            except GgufWorkerError as error:
                if error.code == SETTLED and self.work is not None and self._reached:
                    # It was here before, and away for longer than a receipt waits.
                    self.work = self.work.anew()
                elif not error.retryable:
                    raise
                # Those who lost the same stage open theirs again, too, and others wait for their place.
                await anyio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_MOST_S)
            else:
                self._take()
                return

    def _take(self) -> None:
        self.is_filled = True
        self.record.label = self.stage.label
        self._look_if_caught_up()

    def _lose(self, error: StageLost) -> None:
        now = self._clock()
        self.is_filled, self.must_rewind, self.position = False, False, 0
        self._losses.add(Loss(at=now, label=self.source.label, error=error))
        self._lost_at = now if self._lost_at is None else self._lost_at
        self.record.replays += 1
        log_event(
            log,
            logging.WARNING,
            "stage_lost",
            f"{self.source.label} was lost after {self._reached} rows: {error.message}",
            stage=self.source.label,
            code=error.code,
            rows=self._reached,
            **self._ids(),
        )

    @contextmanager
    def _noticing_loss(self) -> Iterator[None]:
        try:
            yield
        except StageLost as error:
            self._lose(error)
            raise

    # ---- moving it ----

    async def compute(
        self, piece: Piece, hidden: Buffer | None, output: Output, *, is_last: bool, more: bool
    ) -> Result:
        """Appends a piece. A stage that is not the last draws nothing, and so has no use for tokens beside
        hidden rows."""
        tokens = piece.tokens if hidden is None or is_last else None
        session = self.session
        try:
            if session.position > self.position:
                await session.trim(self.position)
            started = time.perf_counter()
            result = await session.forward_piece(tokens=tokens, hidden=hidden, output=output, more=more)
        except StageLost as error:
            self._lose(error)
            raise
        self._count(piece, result, time.perf_counter() - started)
        self.record.bytes_out += (4 * len(tokens) if tokens else 0) + (len(hidden) if hidden else 0)
        end = self.position = piece.end
        if end > self._reached:
            self._reached = end
        if self._lost_at is not None:
            self._look_if_caught_up()
        return result

    def begin(self, token: int) -> None:
        """A row that will be computed next, if nothing ends the sequence: the stage need not wait for whoever
        reads the last one. One that could not forget it again waits."""
        is_level = self.is_filled and not self.must_rewind and self.session.position == self.position
        if is_level and self.stage.can_trim:
            self.session.begin(token, Output.HIDDEN)

    async def rewind(self) -> None:
        """Forgets everything; the history stays what it was."""
        self.must_rewind, self.position = False, 0
        await self.settle()

    def clip(self, position: int) -> None:
        """The sequence has no row from `position` on."""
        self.position = min(self.position, position)
        self._reached = min(self._reached, position)

    async def settle(self) -> None:
        """Lets the session forget what is not part of the sequence."""
        with self._noticing_loss():
            await self._forget_rest()

    async def fork(self, position: int, sampling: Sampling | None) -> StageSession:
        """A new session with the first rows of this one."""
        with self._noticing_loss():
            return await self.session.fork(position, sampling)

    async def _forget_rest(self) -> None:
        if self.session.position > self.position:
            await self.session.trim(self.position)

    def take_fork(self, origin: Link, session: StageSession, position: int) -> None:
        """Fills it with a fork of another link's session."""
        self._stage, self._session, self.position = origin.stage, session, position
        self._reached = position
        self._take()

    # ---- ending it ----

    async def end(self, how: Callable[[StageSession], Awaitable[int]]) -> None:
        """Ends its session, whatever state it is in, and keeps what the stage acknowledged."""
        if not self.is_filled:
            return
        with anyio.move_on_after(END_TIMEOUT_S, shield=True):
            try:
                self.record.kv_cells_freed = await how(self.session)
            except GgufWorkerError as error:
                log.debug("%s did not acknowledge the end of its session: %s", self.source.label, error)

    async def release(self) -> None:
        """Ends its session whatever happened before; nothing happens where that was done."""
        if self._session is not None:
            await self._session.release()

    # ---- what is told of it ----

    def _count(self, piece: Piece, result: Result, elapsed_s: float) -> None:
        record, rows = self.record, len(piece.tokens)
        record.forwards += 1
        record.rows += rows
        if self._reached > piece.start:
            record.rows_replayed += min(rows, self._reached - piece.start)
        record.queue_us += result.queue_us
        record.compute_us += result.compute_us
        hop_us = round(elapsed_s * 1e6) - result.queue_us - result.compute_us
        record.hop_us += hop_us if hop_us > 0 else 0
        record.batch_rows += result.batch_rows
        record.bytes_in += len(result.values or b"")

    def _look_if_caught_up(self) -> None:
        if self._lost_at is None or self.position < self._reached:
            return
        replay_us = round((self._clock() - self._lost_at) * 1e6)
        self._lost_at = None
        self.record.replay_us += replay_us
        log_event(
            log,
            logging.INFO,
            "stage_replayed",
            f"{self.record.label} is back after {replay_us / 1e3:.0f} ms, with {self.position} rows",
            stage=self.record.label,
            rows=self.position,
            duration_ms=replay_us / 1e3,
            **self._ids(),
        )

    def _ids(self) -> dict[str, object]:
        if self.work is None:
            return {}
        return {"request_id": self.work.request_id, "work_id": self.work.work_id}
