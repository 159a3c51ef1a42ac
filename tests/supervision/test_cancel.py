"""Cancels at random moments, against a real worker with the fake engine: what they leave behind."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from fakes import LAYERS, MODEL, SETTINGS, spec
from gguf_worker import Health, Output, Recipe, Session, Supervisor, Worker
from gguf_worker.errors import RequestError

pytestmark = pytest.mark.anyio

CANCELS = 1000
SEQUENCES = 4
RECIPE = Recipe(n_ctx=4096, n_batch=32, n_ubatch=16, prefill_chunk=16)
"""A prefill is computed in pieces, and a step holds two of them or one and a few decode rows."""


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    """A worker in which each step takes some milliseconds, so that cancels fall into them also where the
    machine is busy."""
    shard = spec(recipe=RECIPE, max_sessions=4 * SEQUENCES, fault_plan="slow:4")
    async with Supervisor(shard, settings=SETTINGS) as worker:
        yield worker


@dataclass(slots=True)
class Sequence:
    """A session, and the tokens that it must hold whatever was cancelled."""

    session: Session
    tokens: list[int] = field(default_factory=list)
    scope: anyio.CancelScope | None = None
    """Around the forward that is under way."""


@dataclass(slots=True)
class Turmoil:
    """Sequences that compute without end, and somebody who cancels at random."""

    worker: Worker
    chance: random.Random
    effective: int = 0
    """Cancels that met a request which was not answered yet."""
    lost: int = 0
    """Forwards that were cancelled."""
    done: int = 0
    is_over: bool = False

    async def compute(self, sequence: Sequence) -> None:
        while not self.is_over:
            await self._act(sequence)

    async def _act(self, sequence: Sequence) -> None:
        length = len(sequence.tokens)
        if length > 128:
            position = self.chance.randrange(64)
            await sequence.session.trim(position)
            del sequence.tokens[position:]
        elif self.chance.random() < 0.05:
            await self._fork(sequence)
        else:
            await self._forward(sequence)

    async def _forward(self, sequence: Sequence) -> None:
        more = some_tokens(self.chance)
        with anyio.CancelScope() as sequence.scope:
            try:
                await sequence.session.forward_piece(tokens=more, output=Output.NONE)
            except RequestError as error:
                expect_cancelled(error)
                self.lost += 1
            else:
                sequence.tokens += more
                self.done += 1
        self.lost += sequence.scope.cancelled_caught
        sequence.scope = None

    async def _fork(self, sequence: Sequence) -> None:
        """A fork holds the rows before its position, and what happens to it does not matter to its source."""
        position = self.chance.randint(0, len(sequence.tokens))
        with anyio.CancelScope() as sequence.scope:
            async with await sequence.session.fork(position) as fork:
                assert fork.position == position
                try:
                    await fork.forward_piece(tokens=some_tokens(self.chance), output=Output.NONE)
                except RequestError as error:
                    expect_cancelled(error)
        sequence.scope = None

    async def cancel(self, sequences: list[Sequence]) -> None:
        """Cancels, and then lets them compute in peace: whoever went on to cancel until enough was done might
        never end on a machine that is quick to cancel and slow to compute."""
        while self.effective < CANCELS:
            for _ in range(self.chance.randrange(4)):
                await self.worker.ping()
            if self.chance.random() < 0.8:
                await self._cancel_request()
            else:
                self._cancel_task(self.chance.choice(sequences))
        while self.done < CANCELS / 4:
            await self.worker.ping()
        self.is_over = True

    async def _cancel_request(self) -> None:
        requests = [number for number, kind in self.worker.in_flight.items() if kind == "forward"]
        if requests:
            answer = await self.worker.cancel(self.chance.choice(requests))
            self.effective += answer.state != "unknown"
        else:
            # Not a bare checkpoint: turning round without a pause takes the worker's processor away where
            # there are few, and then hardly any cancel comes in time.
            await self.worker.ping()

    def _cancel_task(self, sequence: Sequence) -> None:
        if sequence.scope is not None and not sequence.scope.cancel_called:
            sequence.scope.cancel()
            self.effective += 1


def expect_cancelled(error: RequestError) -> None:
    """Nothing else may go wrong."""
    if error.code != "cancelled":
        raise error


def some_tokens(chance: random.Random) -> list[int]:
    """One token as often as a prefill of up to four pieces."""
    count = 1 if chance.random() < 0.5 else chance.randint(2, 64)
    return [2 + chance.randrange(200) for _ in range(count)]


async def when_sessions_are_closed(worker: Worker) -> Health:
    """Forks whose opener was cancelled are closed by the supervisor, a little later."""
    with anyio.fail_after(10):
        while (health := await worker.health()).sessions:
            await anyio.lowlevel.checkpoint()
    return health


async def wait_until_computing(worker: Worker) -> None:
    with anyio.fail_after(10):
        while (await worker.health()).state != "computing":
            await anyio.lowlevel.checkpoint()


async def next_logits(session: Session) -> bytes:
    """What a session says after one more token, which depends on every row before it."""
    return bytes((await session.forward(tokens=[7], output=Output.LOGITS)).logits or b"")


async def assert_holds(worker: Worker, sequence: Sequence) -> None:
    """A session says the same as one that was given the same tokens in peace."""
    session, tokens = sequence.session, sequence.tokens
    found = await next_logits(session)
    assert session.position == len(tokens) + 1
    async with await worker.open_session() as fresh:
        if tokens:
            await fresh.forward(tokens=tokens, output=Output.NONE)
        assert found == await next_logits(fresh)


async def wait_until_queued(worker: Worker, count: int) -> None:
    with anyio.fail_after(10):
        while (await worker.health()).queued < count:
            await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("victim", ["the row", "the prefill"])
async def test_cancel_in_the_second_call_of_a_step(victim: str) -> None:
    """A step computes a single row in one call and a prefill in the next. A cancel of the prefill leaves the
    row's result; a cancel of the row comes too late, and the prefill that it hits is computed again."""
    outcomes: dict[str, object] = {}

    async def forward(name: str, session: Session, tokens: list[int]) -> None:
        try:
            outcomes[name] = (await session.forward_piece(tokens=tokens, output=Output.TOKEN)).length
        except RequestError as error:
            outcomes[name] = error.code

    shard = spec(recipe=RECIPE, fault_plan="hang@1,hang-call:2@2")
    async with Supervisor(shard, settings=SETTINGS) as worker:
        first, single, prefill = [await worker.open_session() for _ in range(3)]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(forward, "first", first, [2])
            await wait_until_computing(worker)
            (number,) = worker.in_flight
            before = (await worker.health()).progress
            tasks.start_soon(forward, "the row", single, [3])
            await wait_until_queued(worker, 1)
            tasks.start_soon(forward, "the prefill", prefill, [4, 5, 6])
            await wait_until_queued(worker, 2)
            requests = dict(zip(["the row", "the prefill"], sorted(worker.in_flight)[1:], strict=True))
            await worker.cancel(number)
            with anyio.fail_after(10):
                while (await worker.health()).progress < before + LAYERS:
                    await anyio.lowlevel.checkpoint()
            assert (await worker.cancel(requests[victim])).state == "running"
        done = {"the row": 1, "the prefill": 3 if victim == "the row" else "cancelled"}
        assert outcomes == {"first": "cancelled", **done}
        assert (await worker.health()).kv_cells_used == (4 if victim == "the row" else 1)


async def cancel_a_prefill(worker: Worker, session: Session) -> RequestError:
    """Cancels a long forward when at least one of its pieces is computed."""
    errors: list[RequestError] = []

    async def prefill() -> None:
        with pytest.raises(RequestError) as caught:
            await session.forward_piece(tokens=[5] * 900, output=Output.NONE)
        errors.append(caught.value)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(prefill)
        with anyio.fail_after(10):
            while (await worker.health()).kv_cells_used < session.position + RECIPE.prefill_chunk:
                await anyio.lowlevel.checkpoint()
        (request,) = worker.in_flight
        assert (await worker.cancel(request)).state == "running"
    assert errors[0].code == "cancelled"
    return errors[0]


async def test_thousand_random_cancels_leave_nothing_behind(worker: Worker) -> None:
    """Every session holds just the rows whose forward was not cancelled, and when all are closed no session,
    no KV cell and no request is left."""
    turmoil = Turmoil(worker, random.Random(3))
    sequences = [Sequence(await worker.open_session()) for _ in range(SEQUENCES)]
    with anyio.fail_after(100):
        async with anyio.create_task_group() as tasks:
            for sequence in sequences:
                tasks.start_soon(partial(turmoil.compute, sequence))
            await turmoil.cancel(sequences)
    assert CANCELS / 4 < turmoil.lost <= turmoil.effective, "a cancel hits one request at most"
    for sequence in sequences:
        await assert_holds(worker, sequence)
        await sequence.session.close()
    health = await when_sessions_are_closed(worker)
    assert (health.kv_cells_used, health.queued, health.state) == (0, 0, "ready")
    assert not worker.in_flight
    async with await worker.open_session() as session:
        every = await worker.forward(
            session=session.id, position=0, tokens=[5] * RECIPE.n_ctx, output=Output.NONE
        )
        assert every.kv_cells == RECIPE.n_ctx


async def test_cancelled_prefill_of_a_recurrent_model_closes_its_session() -> None:
    """Recurrent state cannot go back to the middle of a session, which nobody can use any more then; to its
    start it can."""
    shard = replace(spec(recipe=RECIPE, fault_plan="slow:1"), model=f"{MODEL},recurrent=1")
    async with Supervisor(shard, settings=SETTINGS) as worker:
        assert not worker.capacity.can_trim
        session = await worker.open_session()
        error = await cancel_a_prefill(worker, session)
        assert "session_closed" not in error.fields
        await session.forward(tokens=[2, 3, 4], output=Output.NONE)
        error = await cancel_a_prefill(worker, session)
        assert error.fields["session_closed"] == str(session.id)
        health = await worker.health()
        assert (health.sessions, health.kv_cells_used) == (0, 0)
        with pytest.raises(RequestError) as caught:
            await session.forward(tokens=[2], output=Output.NONE)
        assert caught.value.code == "no_session"


async def test_cancelled_prefill_goes_back_to_its_start(worker: Worker) -> None:
    """A forward that was cancelled after some of its pieces says how many KV cells it gave back, and its
    session goes on as if it had not been."""
    async with await worker.open_session() as session:
        await session.forward(tokens=[2, 3, 4], output=Output.NONE)
        error = await cancel_a_prefill(worker, session)
        freed = int(error.fields["kv_cells_freed"])
        assert freed >= RECIPE.prefill_chunk
        assert freed % RECIPE.prefill_chunk == 0
        assert (await worker.health()).kv_cells_used == 3
        await assert_holds(worker, Sequence(session, [2, 3, 4]))
