"""The ways in which the same rows are computed: alone, step by step, and batched with other sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import anyio

from gguf_worker._schema import Buffer
from gguf_worker._tasks import plain_task_group
from gguf_worker.certification.recording import Key
from gguf_worker.certification.workload import Sequence as Tokens
from gguf_worker.errors import GgufWorkerError
from gguf_worker.generation import Route, SessionChain
from gguf_worker.generation.stage import StageSession
from gguf_worker.protocol.messages import Output, Result
from gguf_worker.supervision.session import Session
from gguf_worker.supervision.worker import Worker

Sink = Callable[[Key, Buffer], None]
"""Takes each block of logits as it comes."""

ALONE, STEPWISE, BATCHED = "alone", "stepwise", "batched"

BATCH_ATTEMPTS = 2000
"""How often rows are sent again until all of them shared one step. A model so fast that they often do not is
one whose attempts cost next to nothing."""
POLL_S = 0.0005


async def continue_greedily(route: Route, prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """The `count` most likely tokens after a prompt, whether or not one of them ends a generation."""
    async with route.open_chain() as chain:
        result = await chain.forward(prompt, Output.TOKEN)
        drawn = [result.token]
        while len(drawn) < count:
            drawn.append((await chain.forward(drawn[-1:], Output.TOKEN)).token)
    return tuple(drawn)


async def run_alone(route: Route, number: int, tokens: Tokens, sink: Sink) -> None:
    """Prefills the prompt in one forward, then decodes, with no other session open."""
    async with route.open_chain() as chain:
        sink((ALONE, number, 0), _logits(await chain.forward(tokens.prompt, Output.LOGITS_ALL)))
        for token in tokens.continuation:
            position = chain.position
            sink((ALONE, number, position), _logits(await chain.forward([token], Output.LOGITS)))


async def run_stepwise(route: Route, number: int, tokens: Tokens, sink: Sink) -> None:
    """Computes the prompt row by row."""
    async with route.open_chain() as chain:
        for position, token in enumerate(tokens.prompt):
            sink((STEPWISE, number, position), _logits(await chain.forward([token], Output.LOGITS)))


async def run_batched(route: Route, sequences: Sequence[Tokens], sink: Sink) -> None:
    """Prefills all sequences, then decodes one row of each in one step, again and again; sequences that end
    earlier leave the batch."""
    async with AsyncExitStack() as owner:
        filler = await owner.enter_async_context(_filling(route))
        chains = [await owner.enter_async_context(route.open_chain()) for _ in sequences]
        for chain, tokens in zip(chains, sequences, strict=True):
            await chain.forward(tokens.prompt, Output.NONE)
        seats = [await owner.enter_async_context(_seated(chain)) for chain in chains]
        for step in range(max(len(tokens.continuation) for tokens in sequences)):
            going = [n for n, tokens in enumerate(sequences) if step < len(tokens.continuation)]
            rows = [sequences[number].continuation[step] for number in going]
            results = await filler.one_step([seats[number] for number in going], rows)
            for number, result in zip(going, results, strict=True):
                sink((BATCHED, number, result.length - 1), _logits(result))


def _logits(result: Result) -> Buffer:
    assert result.logits is not None, "logits were asked for"
    return result.logits


# ---- making sure that rows share a step ---------------------------------------------------------


class Seat:
    """One sequence's session on one stage, in which a row can be tried and taken back.

    Where the session cannot be trimmed (the model has recurrent state), a fork of it is kept for that: it
    takes the session's place, with the state that the session had.
    """

    def __init__(self, session: StageSession, *, can_trim: bool) -> None:
        self.session = session
        self._can_trim = can_trim
        self._before: StageSession | None = None

    async def begin(self) -> None:
        """To be called before a row is tried."""
        if not self._can_trim:
            self._before = await self.session.fork()

    async def keep(self) -> None:
        """The row stays."""
        if self._before is not None:
            await self._before.release()
            self._before = None

    async def take_back(self) -> None:
        """The session is as it was before the row."""
        if self._before is None:
            await self.session.trim(self.session.position - 1)
        else:
            await self.session.release()
            self.session, self._before = self._before, None

    async def release(self) -> None:
        """Ends its sessions."""
        await self.keep()
        await self.session.release()


@asynccontextmanager
async def _seated(chain: SessionChain) -> AsyncIterator[list[Seat]]:
    """A seat for each stage of a chain."""
    async with AsyncExitStack() as owner:
        seats = []
        for session, stage in zip(chain.sessions, chain.stages, strict=True):
            seats.append(Seat(session, can_trim=stage.can_trim))
            owner.push_async_callback(seats[-1].release)
        yield seats


@asynccontextmanager
async def _filling(route: Route) -> AsyncIterator[Filler]:
    async with AsyncExitStack() as owner:
        sessions = [await owner.enter_async_context(await worker.open_session()) for worker in route.workers]
        filler = Filler(route.workers, sessions)
        await filler.prepare()
        yield filler


class Filler:
    """Keeps a stage busy with rows that nobody wants while the rows of a batch gather in its queue.

    A worker takes what waits for it into one step, so rows that came while it computed share the next one.
    That they did is read off their results, and they are sent again where they did not.
    """

    def __init__(self, workers: Sequence[Worker], sessions: Sequence[Session]) -> None:
        self._workers = workers
        self._sessions = sessions
        self._inputs: list[Buffer | None] = []

    async def prepare(self) -> None:
        """Computes the filler's own rows once, so that every stage has something to be filled with."""
        n_rows = self._n_rows()
        hidden: Buffer | None = None
        for stage, session in enumerate(self._sessions):
            self._inputs.append(hidden)
            result = await session.forward(
                tokens=[0] * n_rows if stage == 0 else None, hidden=hidden, output=self._output(stage)
            )
            hidden = result.hidden
            await session.trim(0)

    def _n_rows(self) -> int:
        """One piece of a prefill, and no more than a quarter of a session's room."""
        recipe = self._workers[0].identity.recipe
        return max(1, min(recipe.prefill_chunk, recipe.n_ctx // 4))

    def _output(self, stage: int) -> Output:
        return Output.NONE if stage + 1 == len(self._workers) else Output.HIDDEN

    async def one_step(self, chains: Sequence[Sequence[Seat]], tokens: Sequence[int]) -> list[Result]:
        """One row of each chain of seats, all of them in one step on every stage; the last stage's logits."""
        results: list[Result] = []
        for stage in range(len(self._workers)):
            seats = [chain[stage] for chain in chains]
            hidden = [result.hidden for result in results] or [None] * len(chains)
            results = await self._stage_step(stage, seats, tokens, hidden)
        return results

    async def _stage_step(
        self, stage: int, seats: Sequence[Seat], tokens: Sequence[int], hidden: Sequence[Buffer | None]
    ) -> list[Result]:
        output = Output.LOGITS if stage + 1 == len(self._workers) else Output.HIDDEN
        for _ in range(BATCH_ATTEMPTS):
            results: list[Result | None] = [None] * len(seats)

            async def one(index: int, results: list[Result | None] = results) -> None:
                results[index] = await seats[index].session.forward_piece(
                    tokens=[tokens[index]] if stage == 0 else None, hidden=hidden[index], output=output
                )

            for seat in seats:
                await seat.begin()
            rows_before = (await self._workers[stage].health()).rows
            async with plain_task_group() as tasks:
                tasks.start_soon(self._fill, stage)
                await self._until_computing(stage, rows_before)
                for index in range(len(seats)):
                    tasks.start_soon(one, index)
            await self._sessions[stage].trim(0)
            done = [result for result in results if result is not None]
            share = all(result.batch_rows == len(seats) for result in done)
            for seat in seats:
                await (seat.keep() if share else seat.take_back())
            if share:
                return done
        raise GgufWorkerError(
            f"{len(seats)} rows never shared a step on stage {stage} in {BATCH_ATTEMPTS} attempts; "
            "run it on a machine that is less busy",
            code="not_batched",
            retryable=True,
        )

    async def _fill(self, stage: int) -> None:
        tokens = [0] * self._n_rows() if stage == 0 else None
        await self._sessions[stage].forward_piece(
            tokens=tokens, hidden=self._inputs[stage], output=Output.NONE
        )

    async def _until_computing(self, stage: int, rows_before: int) -> None:
        """Waits until the worker has taken up the filler's rows; they may be done already. A filler that
        fails ends the task group, and this with it."""
        while True:
            health = await self._workers[stage].health()
            if health.state == "computing" or health.rows > rows_before:
                return
            await anyio.sleep(POLL_S)
