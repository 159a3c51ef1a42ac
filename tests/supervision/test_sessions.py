"""Sessions of a worker with the fake engine: forks, rows of every dtype, tokens beside hidden rows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial

import anyio
import pytest

from fakes import MODEL, SETTINGS, spec
from gguf_worker import Output, Recipe, Sampling, Session, Supervisor, Worker
from gguf_worker.errors import LocalProtocolError, RequestError

pytestmark = pytest.mark.anyio

ROWS = [72, 101, 108, 108, 111]


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    """A ready worker that holds the whole fake model."""
    async with Supervisor(spec(), settings=SETTINGS) as worker:
        yield worker


async def logits_after(session: Session, token: int) -> bytes:
    return bytes((await session.forward(tokens=[token], output=Output.LOGITS)).logits or b"")


async def fresh_logits(worker: Worker, tokens: list[int]) -> bytes:
    """The last row's logits in a session that computes all of the tokens itself."""
    async with await worker.open_session() as session:
        return bytes((await session.forward(tokens=tokens, output=Output.LOGITS)).logits or b"")


@pytest.mark.parametrize("position", [0, 3, None])
async def test_fork_goes_on_from_where_it_was_made(worker: Worker, position: int | None) -> None:
    """A fork gives what a fresh session of the same tokens gives, and leaves the other one as it was."""
    expected = await fresh_logits(worker, [*ROWS[:position], 33])
    untouched = await fresh_logits(worker, [*ROWS, 34])
    async with await worker.open_session() as session:
        await session.forward(tokens=ROWS, output=Output.NONE)
        async with await session.fork(position) as fork:
            assert fork.position == len(ROWS[:position])
            assert await logits_after(fork, 33) == expected
        assert session.position == len(ROWS)
        assert await logits_after(session, 34) == untouched
    assert (await worker.health()).sessions == 0


async def test_fork_shares_its_rows(worker: Worker) -> None:
    """A fork computes nothing and takes no KV cells until it goes on."""
    async with await worker.open_session() as session:
        await session.forward(tokens=ROWS, output=Output.NONE)
        before = await worker.health()
        async with await session.fork():
            after = await worker.health()
    assert (after.rows, after.kv_cells_used) == (before.rows, before.kv_cells_used)
    assert after.sessions == before.sessions + 1


async def test_fork_draws_as_its_origin_does(worker: Worker) -> None:
    """The sampling goes with the fork unless another one is given."""
    sampling = Sampling(temperature=5.0, seed=3)
    async with await worker.open_session(sampling=sampling) as session:
        await session.forward(tokens=ROWS, output=Output.NONE)
        async with await session.fork() as same, await session.fork(sampling=Sampling()) as greedy:
            assert (same.sampling, greedy.sampling) == (sampling, Sampling())
            drawn = [await one.forward(tokens=[33], output=Output.TOKEN) for one in (session, same, greedy)]
    assert drawn[1].token == drawn[0].token
    assert drawn[2].logprob == max(one.logprob for one in drawn)


@pytest.mark.parametrize("position", [-1, 6])
async def test_fork_past_what_there_is_changes_nothing(worker: Worker, position: int) -> None:
    """A fork at a row that the session does not have is refused here, and the session goes on."""
    async with await worker.open_session() as session:
        await session.forward(tokens=ROWS, output=Output.NONE)
        with pytest.raises(LocalProtocolError, match="cannot be forked at"):
            await session.fork(position)
        assert (await session.forward(tokens=[33], output=Output.NONE)).length == 6
    assert (await worker.health()).errors == 0


async def test_fork_after_a_cancelled_forward_has_none_of_it() -> None:
    """What was cancelled may have been computed; a fork begins with the rows that its user knows of."""
    async with Supervisor(spec(fault_plan="hang@3"), settings=SETTINGS) as worker:
        expected = await fresh_logits(worker, [*ROWS, 33])
        async with await worker.open_session() as session:
            await session.forward(tokens=ROWS, output=Output.NONE)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(session.forward, tokens=[90, 91], output=Output.NONE))
                with anyio.fail_after(10):
                    while (await worker.health()).state != "computing":
                        pass
                tasks.cancel_scope.cancel()
            async with await session.fork() as fork:
                assert fork.position == len(ROWS)
                assert await logits_after(fork, 33) == expected


@pytest.mark.parametrize(("boundary", "value_bytes"), [("f32", 4), ("f16", 2), ("bf16", 2)])
async def test_rows_of_every_dtype_are_cut_between_rows(boundary: str, value_bytes: int) -> None:
    """Hidden rows that go in pieces give the same logits as in one, whatever a value's size."""
    tokens = [2 + index % 200 for index in range(100)]
    logits = []
    for batch in (512, 16):
        recipe = Recipe(n_batch=batch, n_ubatch=batch, boundary=boundary)
        async with (
            Supervisor(spec((0, 6), recipe=recipe), settings=SETTINGS) as first,
            Supervisor(spec((6, 0), recipe=recipe), settings=SETTINGS) as last,
            await first.open_session() as one,
            await last.open_session() as other,
        ):
            rows = await one.forward(tokens=tokens, output=Output.HIDDEN)
            assert rows.hidden is not None
            assert (rows.dtype, rows.rows, rows.columns) == (boundary, 100, 8)
            assert len(rows.hidden) == 100 * 8 * value_bytes == 100 * first.row_bytes
            result = await other.forward(tokens=tokens, hidden=rows.hidden, output=Output.LOGITS_ALL)
            assert result.dtype == "f32"
            logits.append(bytes(result.logits or b""))
    assert logits[0] == logits[1]


async def test_tokens_beside_hidden_rows_must_be_as_many() -> None:
    """A token for each row, or none at all; otherwise nothing is sent."""
    async with Supervisor(spec((6, 0)), settings=SETTINGS) as last, await last.open_session() as session:
        for n_tokens in (2, 4):
            with pytest.raises(LocalProtocolError, match="one token for each row"):
                await session.forward(
                    tokens=[2] * n_tokens, hidden=bytes(3 * last.row_bytes), output=Output.NONE
                )
        assert (await session.forward(hidden=bytes(3 * last.row_bytes), output=Output.NONE)).length == 3
        assert (await last.health()).errors == 0


async def test_penalty_without_the_tokens_is_refused() -> None:
    """A stage that never saw the tokens cannot penalise them, and says so instead of guessing."""
    penalty = Sampling(repeat_penalty=1.5)
    async with (
        Supervisor(spec((6, 0)), settings=SETTINGS) as last,
        await last.open_session(sampling=penalty) as session,
    ):
        row = bytes(last.row_bytes)
        with pytest.raises(RequestError) as caught:
            await session.forward(hidden=row, output=Output.TOKEN)
        assert caught.value.code == "argument"
        assert (await session.forward(tokens=[2], hidden=row, output=Output.TOKEN)).length == 1


@pytest.mark.parametrize(
    ("batch", "chunk", "most"), [(100, 32, 96), (100, 100, 100), (64, 0, 64), (96, 48, 96), (33, 32, 32)]
)
async def test_forward_carries_whole_prefill_chunks(batch: int, chunk: int, most: int) -> None:
    """Pieces end where the worker would cut anyway, so that a sequence is cut alike however it is sent."""
    recipe = Recipe(n_batch=batch, n_ubatch=min(batch, 64) if not chunk else batch, prefill_chunk=chunk)
    async with Supervisor(spec(recipe=recipe), settings=SETTINGS) as worker:
        assert worker.max_rows(Output.HIDDEN) == most
        assert worker.identity.recipe.prefill_chunk == (chunk or recipe.n_ubatch)


async def test_session_that_cannot_be_undone_is_closed() -> None:
    """A recurrent model whose forward was cancelled after some of it was computed has lost its session."""
    recurrent = replace(
        spec(recipe=Recipe(n_batch=8, n_ubatch=8, prefill_chunk=4), fault_plan="hang@3"),
        model=f"{MODEL},recurrent=1",
    )
    async with Supervisor(recurrent, settings=SETTINGS) as worker:
        assert not worker.capacity.can_trim
        session = await worker.open_session()
        await session.forward(tokens=ROWS[:3], output=Output.NONE)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(forward_and_lose, session)
            with anyio.fail_after(10):
                while (await worker.health()).rows < 7:
                    pass
            (request,) = [number for number, kind in worker.in_flight.items() if kind == "forward"]
            await worker.cancel(request)
        assert (await worker.health()).sessions == 0
        errors = (await worker.health()).errors
        assert await session.close() == 0
        assert (await worker.health()).errors == errors


async def forward_and_lose(session: Session) -> None:
    with pytest.raises(RequestError) as caught:
        await session.forward(tokens=[2] * 8, output=Output.NONE)
    assert (caught.value.code, caught.value.fields["session_closed"]) == ("cancelled", str(session.id))


async def test_top_candidates_come_with_a_token(worker: Worker) -> None:
    """As many as the session asked for, the best first; a greedy draw takes the best."""
    async with await worker.open_session(sampling=Sampling(top_logprobs=5)) as session:
        result = await session.forward(tokens=ROWS, output=Output.TOKEN)
    assert len(result.top) == 5
    assert [one.logprob for one in result.top] == sorted((one.logprob for one in result.top), reverse=True)
    assert (result.top[0].token, result.top[0].logprob) == (result.token, result.logprob)
