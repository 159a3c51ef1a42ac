"""Rows that a worker computes before it is asked to: the same results, at most one in vain, nothing left."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from unittest.mock import patch

import anyio
import pytest

from fakes import SETTINGS, spec
from gguf_worker import Output, Recipe, Result, Sampling, Session, ShardSpec, Supervisor, Worker
from gguf_worker.errors import RequestError, StageLost
from gguf_worker.protocol.connection import HostConnection
from gguf_worker.protocol.messages import Cancel, Close, Forward, Request, Trim

pytestmark = pytest.mark.anyio

ROWS = [72, 101, 108, 108, 111]
EOS = 0
NEVER_ENDS = Sampling(temperature=1.0, seed=7, logit_bias=((EOS, float("-inf")),))


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    """A ready worker that holds the whole fake model."""
    async with Supervisor(spec(), settings=SETTINGS) as worker:
        yield worker


@contextmanager
def requests_sent() -> Iterator[list[Request]]:
    """All that go to a worker meanwhile."""
    sent = []
    send = HostConnection.send

    def note(connection: HostConnection, request: Request) -> Any:
        sent.append(request)
        return send(connection, request)

    with patch.object(HostConnection, "send", note):
        yield sent


async def row(session: Session, token: int, *, more: bool = True) -> Result:
    return await session.forward_piece(tokens=[token], output=Output.TOKEN, more=more)


async def draws(session: Session, count: int, *, more: bool) -> list[int]:
    """The tokens that follow ROWS."""
    result = await session.forward_piece(tokens=ROWS, output=Output.TOKEN, more=more)
    tokens = [result.token]
    while len(tokens) < count:
        tokens.append((await row(session, tokens[-1], more=more)).token)
    return tokens


async def test_the_same_tokens_and_one_row_more(worker: Worker) -> None:
    async with await worker.open_session(sampling=NEVER_ENDS) as session:
        expected = await draws(session, 40, more=False)
    before = (await worker.health()).rows
    async with await worker.open_session(sampling=NEVER_ENDS) as session:
        assert await draws(session, 40, more=True) == expected
        assert session.position == len(ROWS) + 39
        assert list(worker.in_flight.values()) in ([], ["forward"])
    health = await worker.health()
    assert health.rows - before == len(ROWS) + 39 + 1
    assert (health.sessions, health.kv_cells_used, health.errors) == (0, 0, 0)


async def test_the_next_row_is_sent_before_the_last_one_is_answered(worker: Worker) -> None:
    async with await worker.open_session(sampling=NEVER_ENDS) as session:
        with requests_sent() as sent:
            await draws(session, 3, more=True)
    forwards = [request for request in sent if isinstance(request, Forward)]
    assert [request.after_draw for request in forwards] == [None, True, True, True]
    assert [request.position for request in forwards] == [0, 5, 6, 7]


async def test_a_model_that_ends_it_computes_nothing_in_vain_and_has_no_error(worker: Worker) -> None:
    sampling = Sampling(logit_bias=((EOS, 1000.0),))
    async with await worker.open_session(sampling=sampling) as session:
        result = await session.forward_piece(tokens=ROWS, output=Output.TOKEN, more=True)
        assert result.end_of_generation
        assert session.position == len(ROWS)
    health = await worker.health()
    assert (health.rows, health.errors, health.kv_cells_used) == (len(ROWS), 0, 0)


async def test_going_on_from_the_token_that_ended_it(worker: Worker) -> None:
    """What was sent ahead was refused; the token itself is not."""
    sampling = Sampling(logit_bias=((EOS, 1000.0),))
    async with await worker.open_session(sampling=sampling) as session:
        await session.forward_piece(tokens=ROWS, output=Output.TOKEN, more=True)
        assert (await row(session, EOS)).length == len(ROWS) + 1


async def test_another_token_than_the_drawn_one(worker: Worker) -> None:
    """The row of the drawn one is forgotten, whether it was computed or not."""
    async with await worker.open_session(sampling=NEVER_ENDS) as fresh:
        expected = await fresh.forward_piece(tokens=[*ROWS, 33], output=Output.LOGITS)
    async with await worker.open_session(sampling=NEVER_ENDS) as session:
        drawn = await session.forward_piece(tokens=ROWS, output=Output.TOKEN, more=True)
        assert drawn.token != 33
        result = await session.forward_piece(tokens=[33], output=Output.LOGITS)
        assert (result.length, result.logits) == (len(ROWS) + 1, expected.logits)


async def test_a_stage_of_several_does_not_run_ahead() -> None:
    async with Supervisor(spec((0, 6)), settings=SETTINGS) as first:
        assert not first.can_run_ahead
    async with Supervisor(spec((6, 0)), settings=SETTINGS) as last:
        assert not last.can_run_ahead


async def test_the_end_of_a_session_aborts_no_step() -> None:
    """It would cost every other session in the step as much."""
    async with Supervisor(spec(), settings=SETTINGS) as worker:
        async with await worker.open_session(sampling=NEVER_ENDS) as session:
            await session.forward_piece(tokens=ROWS, output=Output.TOKEN, more=True)
            with requests_sent() as sent:
                await session.close("stop")
        assert [type(request) for request in sent] == [Close]
        assert (await worker.health()).kv_cells_used == 0


async def test_a_trim_takes_back_what_was_sent(worker: Worker) -> None:
    async with await worker.open_session(sampling=NEVER_ENDS) as session:
        drawn = await session.forward_piece(tokens=ROWS, output=Output.TOKEN, more=True)
        with requests_sent() as sent:
            await session.trim(len(ROWS) - 1)
        assert type(sent[-1]) is Trim
        assert {type(request) for request in sent} <= {Cancel, Trim}
        assert (await row(session, ROWS[-1])).token == drawn.token
    assert (await worker.health()).kv_cells_used == 0


async def test_a_forward_that_is_cancelled_takes_the_next_one_with_it() -> None:
    async with Supervisor(spec(fault_plan="hang@2"), settings=SETTINGS) as worker:
        async with await worker.open_session(sampling=NEVER_ENDS) as session:
            drawn = await session.forward_piece(tokens=ROWS, output=Output.TOKEN, more=True)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(row, session, drawn.token)
                with anyio.fail_after(10):
                    while len(worker.in_flight) < 2:
                        await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            again = await row(session, drawn.token)
            assert again.length == len(ROWS) + 1
        async with await worker.open_session(sampling=NEVER_ENDS) as fresh:
            assert (await draws(fresh, 2, more=False))[1] == again.token
        assert (await worker.health()).kv_cells_used == 0


async def test_cancel_ends_both() -> None:
    """Also while another task waits: that one's request fails, and nothing is left."""
    async with Supervisor(spec(fault_plan="hang@2"), settings=SETTINGS) as worker:
        session = await worker.open_session(sampling=NEVER_ENDS)
        drawn = await session.forward_piece(tokens=ROWS, output=Output.TOKEN, more=True)

        async def wait() -> None:
            with pytest.raises(RequestError) as caught:
                await row(session, drawn.token)
            assert caught.value.code == "cancelled"

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            with anyio.fail_after(10):
                while (await worker.health()).state != "computing":
                    pass
            assert await session.cancel("cancelled") == len(ROWS)
        health = await worker.health()
        assert (health.sessions, health.kv_cells_used, health.queued) == (0, 0, 0)


async def test_a_worker_that_dies_with_both_is_one_loss() -> None:
    async with Supervisor(spec(fault_plan="crash@2"), settings=SETTINGS) as worker:
        session = await worker.open_session(sampling=NEVER_ENDS)
        drawn = await session.forward_piece(tokens=ROWS, output=Output.TOKEN, more=True)
        for _ in range(2):
            with pytest.raises(StageLost):
                await row(session, drawn.token)
        await session.release()


async def test_its_time_begins_when_it_is_asked_for() -> None:
    """Sent with the row before it, it waits for that one first, and the two take longer than one may."""
    settings = replace(SETTINGS, request_timeout_s=1.8)
    async with (
        Supervisor(spec(fault_plan="slow:1000"), settings=settings) as worker,
        await worker.open_session(sampling=NEVER_ENDS) as session,
    ):
        assert len(await draws(session, 3, more=True)) == 3


async def test_recurrent_models_wait_to_be_asked() -> None:
    """Their state cannot go back by a row."""
    recurrent = ShardSpec("fake:layers=4,embd=8,vocab=256,recurrent=1", engine="fake")
    async with Supervisor(recurrent, settings=SETTINGS) as worker:
        assert not worker.can_run_ahead


# ---- anything, in any order ----


@dataclass(kw_only=True)
class Sequence:
    """What a session should hold."""

    session: Session
    tokens: list[int] = field(default_factory=list)
    drawn: int | None = None


async def _act(worker: Worker, sequence: Sequence, chance: Random) -> None:
    session = sequence.session
    match chance.randrange(8):
        case 0 if sequence.tokens:
            position = chance.randrange(len(sequence.tokens))
            await session.trim(position)
            del sequence.tokens[position:]
            sequence.drawn = None
        case 1:
            async with await session.fork() as fork:
                await fork.forward_piece(tokens=[9], output=Output.NONE, more=True)
        case 2:
            with anyio.move_on_after(0):
                token = 8 if sequence.drawn is None else sequence.drawn
                result = await row(session, token)
                sequence.tokens.append(token)  # it was there before anybody asked for it
                sequence.drawn = result.token
        case 3:
            await _forward(worker, sequence, [chance.randrange(2, 200)], Output.LOGITS, more=False)
        case _:
            token = sequence.drawn if sequence.drawn is not None else chance.randrange(2, 200)
            await _forward(worker, sequence, [token], Output.TOKEN, more=chance.random() < 0.8)


async def _forward(
    worker: Worker, sequence: Sequence, tokens: list[int], output: Output, *, more: bool
) -> None:
    result = await sequence.session.forward_piece(tokens=tokens, output=output, more=more)
    sequence.tokens += tokens
    sequence.drawn = result.token if output is Output.TOKEN else None
    async with await worker.open_session(sampling=NEVER_ENDS) as fresh:
        expected = await fresh.forward_piece(tokens=sequence.tokens, output=output)
    assert result.length == len(sequence.tokens)
    assert (result.token, result.logprob, result.logits) == (
        expected.token,
        expected.logprob,
        expected.logits,
    )


@pytest.mark.parametrize("seed", range(5))
async def test_whatever_is_done_the_rows_are_those_that_were_asked_for(seed: int) -> None:
    chance = Random(seed)
    recipe = Recipe(n_ctx=4096)
    async with Supervisor(spec(recipe=recipe, max_sessions=8), settings=SETTINGS) as worker:
        sessions = [await worker.open_session(sampling=NEVER_ENDS) for _ in range(3)]
        sequences = [Sequence(session=session) for session in sessions]

        async def live(sequence: Sequence) -> None:
            for _ in range(40):
                await _act(worker, sequence, chance)

        async with anyio.create_task_group() as tasks:
            for sequence in sequences:
                tasks.start_soon(live, sequence)
        for session in sessions:
            await session.close()
        health = await worker.health()
        assert (health.sessions, health.kv_cells_used, health.queued) == (0, 0, 0)
