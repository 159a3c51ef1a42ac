"""Requests to a real worker with the fake engine: answers, refusals, deadlines, cancellation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from fakes import SETTINGS, spec
from gguf_worker import Output, Recipe, Supervisor, Worker
from gguf_worker.errors import LocalProtocolError, RequestError, RequestTimeout, WorkerStopped

pytestmark = pytest.mark.anyio


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    """A ready worker that holds the whole fake model."""
    async with Supervisor(spec(), settings=SETTINGS) as worker:
        yield worker


async def wait_until_in_flight(worker: Worker, kind: str) -> int:
    """The id of a request of that type, once it was sent."""
    with anyio.fail_after(10):
        while True:
            for request_id, sent in worker.in_flight.items():
                if sent == kind:
                    return request_id
            await anyio.lowlevel.checkpoint()


async def wait_until_computing(worker: Worker) -> None:
    with anyio.fail_after(10):
        while (await worker.health()).state != "computing":
            pass


async def test_worker_attests_what_was_asked(worker: Worker) -> None:
    """A ready worker's identity, ownership and build are its own words, and they match the specification."""
    assert (worker.identity.start, worker.identity.end) == (0, 12)
    assert worker.identity.recipe.n_threads > 0
    assert worker.identity.recipe == Recipe(
        n_threads=worker.identity.recipe.n_threads, prefill_chunk=Recipe().n_ubatch
    )
    assert worker.ownership.layers == (0, 12)
    assert worker.ownership.owned_layers == 12
    assert worker.ownership.token_embedding
    assert worker.ownership.output_head
    assert worker.hello.pid == worker.pid
    assert worker.hello.build.engine == "fake"
    assert worker.hello.build.features == ""
    assert (worker.model.n_embd_out, worker.model.pooling) == (8, "none")
    assert worker.memory.total_bytes > 0
    assert worker.capacity.max_sessions == 4
    assert repr(worker) == f"<Worker ready pid={worker.pid} identity={worker.identity}>"


async def test_session_tracks_its_position(worker: Worker) -> None:
    """Forward, trim and close move the session's position as the worker confirms it."""
    session = await worker.open_session()
    result = await session.forward(tokens=[2, 3, 4], output=Output.TOKEN)
    assert (result.length, session.position, result.kv_cells) == (3, 3, 3)
    assert await session.trim(1) == 2
    assert session.position == 1
    again = await session.forward(tokens=[3, 4], output="token")
    assert (again.token, again.logprob) == (result.token, result.logprob)
    assert await session.close() == 3
    assert await session.close() == 0
    assert (await worker.health()).sessions == 0


async def test_session_longer_than_a_step_goes_in_pieces() -> None:
    """A prefill of more rows than one step takes gives the same logits as one that fits."""
    tokens = [2 + index % 200 for index in range(100)]
    small = replace(spec(), recipe=Recipe(n_batch=16, n_ubatch=16))
    rows = []
    for one in (spec(), small):
        async with Supervisor(one, settings=SETTINGS) as worker:
            async with await worker.open_session() as session:
                result = await session.forward(tokens=tokens, output=Output.LOGITS_ALL)
            assert (result.rows, result.columns, session.position) == (100, 256, 100)
            rows.append(bytes(result.logits or b""))
    assert rows[0] == rows[1]


async def test_forwards_of_many_sessions_at_once_do_not_mix(worker: Worker) -> None:
    """Sessions that compute together give what each gives alone."""
    prompts = [[2, 3], [4, 5, 6], [7], [8, 9, 10, 11]]
    alone = []
    for prompt in prompts:
        async with await worker.open_session() as session:
            alone.append((await session.forward(tokens=prompt, output="logits")).logits)
    together: dict[int, object] = {}

    async def run(index: int) -> None:
        async with await worker.open_session() as session:
            together[index] = (await session.forward(tokens=prompts[index], output="logits")).logits

    async with anyio.create_task_group() as tasks:
        for index in range(len(prompts)):
            tasks.start_soon(run, index)
    assert [together[index] for index in range(len(prompts))] == alone


async def test_text_survives_tokens(worker: Worker) -> None:
    """Tokenize and detokenize are each other's inverse, for bytes that are no UTF-8 too."""
    for text in ("Grüße", b"\xff\x80raw"):
        tokens = await worker.tokenize(text, add_special=False)
        assert await worker.detokenize(tokens) == (text.encode() if isinstance(text, str) else text)
    infos = await worker.token_info([0, 65])
    assert [(info.control, info.end_of_generation) for info in infos] == [(True, True), (False, False)]


async def test_chat_template_is_text(worker: Worker) -> None:
    """The model's own, and none under a name that it does not know."""
    assert "message.role" in await worker.chat_template()
    assert await worker.chat_template("tool_use") == ""
    with pytest.raises(RequestError) as caught:
        await worker.chat_template("n" * 64)
    assert caught.value.code == "bad_message"


async def test_embeddings_are_of_every_row(worker: Worker) -> None:
    """Also where the rows go in pieces: the same rows as in one forward of each."""
    whole, single = await worker.open_session(), await worker.open_session()
    tokens = [3 + i % 50 for i in range(worker.capacity.max_batch + 3)]
    result = await whole.forward(tokens=tokens, output="embedding")
    assert (result.rows, result.columns, result.dtype) == (len(tokens), worker.model.n_embd_out, "f32")
    assert result.embedding is not None
    row_bytes = 4 * result.columns
    for start in (0, worker.capacity.max_batch):
        await single.trim(0)
        if start:
            await single.forward(tokens=tokens[:start], output="none")
        alone = await single.forward(tokens=tokens[start : start + 1], output="embedding")
        assert alone.embedding == bytes(result.embedding)[start * row_bytes : (start + 1) * row_bytes]


async def test_error_frame_is_raised_with_its_fields_and_disturbs_nobody(worker: Worker) -> None:
    """A refusal names both positions; the session goes on from where it was."""
    session = await worker.open_session()
    await session.forward(tokens=[2, 3], output="none")
    with pytest.raises(RequestError) as caught:
        await worker.forward(session=session.id, position=7, tokens=[4], output="none")
    assert caught.value.code == "position"
    assert (caught.value.fields["expected"], caught.value.fields["actual"]) == ("2", "7")
    assert (await session.forward(tokens=[4], output="none")).length == 3


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"output": "none"}, "'tokens' or 'hidden' must be there"),
        ({"output": "none", "tokens": [1], "hidden": b""}, "at least one row"),
        ({"output": "none", "tokens": []}, "at least one row"),
        ({"output": "everything", "tokens": [1]}, "everything"),
    ],
)
async def test_forward_that_makes_no_sense_is_refused_here(
    worker: Worker, arguments: dict[str, object], reason: str
) -> None:
    """This side's mistake is a LocalProtocolError, and nothing is sent."""
    with pytest.raises(LocalProtocolError, match=reason):
        await worker.forward(session=1, position=0, **arguments)  # type: ignore[arg-type]
    assert (await worker.health()).errors == 0


async def test_ping_and_health_are_answered_while_computing() -> None:
    """The control thread answers while the execution thread is busy."""
    async with Supervisor(spec(fault_plan="hang@1"), settings=SETTINGS) as worker:
        session = await worker.open_session()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(forward_and_expect_cancelled, worker, session.id)
            request_id = await wait_until_in_flight(worker, "forward")
            await wait_until_computing(worker)
            assert await worker.ping() < 10
            assert (await worker.cancel(request_id)).state == "running"
        assert (await session.forward(tokens=[2], output="none")).length == 1


async def forward_and_expect_cancelled(worker: Worker, session: int) -> None:
    with pytest.raises(RequestError) as caught:
        await worker.forward(session=session, position=0, tokens=[2], output="none")
    assert caught.value.code == "cancelled"


async def test_cancel_of_an_answered_request_is_unknown(worker: Worker) -> None:
    """A cancel that comes too late says so and breaks nothing."""
    await worker.ping()
    assert (await worker.cancel(1)).state == "unknown"


async def test_timeout_cancels_the_request_and_the_session_goes_on() -> None:
    """A request past its deadline fails with RequestTimeout; its session is as it was before it."""
    settings = replace(SETTINGS, request_timeout_s=1.0)
    async with Supervisor(spec(fault_plan="hang@1"), settings=settings) as worker:
        session = await worker.open_session()
        with pytest.raises(RequestTimeout) as caught:
            await session.forward(tokens=[2, 3], output="none")
        assert caught.value.fields["type"] == "forward"
        assert caught.value.fields["session"] == str(session.id)
        assert worker.in_flight == {}
        result = await session.forward(tokens=[2, 3], output="none")
        assert (result.length, session.position) == (2, 2)


async def test_cancelled_task_cancels_its_request_and_the_session_goes_on() -> None:
    """When the awaiting task is cancelled the worker stops computing for it, and the session can go on."""
    async with Supervisor(spec(fault_plan="hang@1"), settings=SETTINGS) as worker:
        session = await worker.open_session()

        async def forward() -> None:
            await session.forward(tokens=[2, 3], output="none")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(forward)
            await wait_until_computing(worker)
            tasks.cancel_scope.cancel()
        assert worker.in_flight == {}
        assert (await session.forward(tokens=[2, 3], output="none")).length == 2


async def test_cancelled_open_leaves_no_session_behind(worker: Worker) -> None:
    """A session whose opener gave up is closed again, whichever came first."""
    for _ in range(20):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(worker.open_session)
                await anyio.lowlevel.checkpoint()
                scope.cancel()
    with anyio.fail_after(10):
        while (await worker.health()).sessions:
            pass
    async with await worker.open_session() as session:
        await session.forward(tokens=[2], output="none")


async def test_cancel_in_the_middle_of_a_large_frame_leaves_the_stream_whole(worker: Worker) -> None:
    """A frame of which a part was written is written to its end, whatever became of its sender."""
    text = bytes(range(1, 256)) * 40_000
    for _ in range(3):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(worker.tokenize, text)
                await wait_until_in_flight(worker, "tokenize")
                scope.cancel()
        assert await worker.tokenize(b"AB", add_special=False) == [65, 66]


async def test_request_after_the_stop_says_so() -> None:
    """A worker that was stopped on purpose is told apart from one that died."""
    async with Supervisor(spec(), settings=SETTINGS) as worker:
        pass
    with pytest.raises(WorkerStopped):
        await worker.ping()


async def test_hidden_rows_are_sent_from_the_callers_memory() -> None:
    """A stage takes rows as any buffer: bytes, bytearray, or a view of floats."""
    async with Supervisor(spec((6, 0)), settings=SETTINGS) as worker:
        rows = bytearray(b"\x00\x00\x80\x3f" * 8 * 3)
        answers = []
        for view in (bytes(rows), rows, memoryview(rows).cast("f")):
            async with await worker.open_session() as session:
                answers.append((await session.forward(hidden=view, output="logits")).logits)
        assert answers[0] == answers[1] == answers[2]


async def test_session_closed_late_is_still_closed() -> None:
    """A close whose caller gave up stays on its way: the worker does not keep the session."""
    async with Supervisor(spec(fault_plan="slow:200"), settings=SETTINGS) as worker:
        busy, other = await worker.open_session(), await worker.open_session()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(busy.forward, tokens=[2], output="none"))
            await anyio.lowlevel.checkpoint()
            with anyio.move_on_after(0):
                await other.close()
        with anyio.fail_after(20):
            while (await worker.health()).sessions > 1:
                await anyio.lowlevel.checkpoint()


async def test_cancelled_trim_is_made_up_for(worker: Worker) -> None:
    """A session whose trim was cancelled goes on from the position that was asked for."""
    session = await worker.open_session()
    await session.forward(tokens=[2, 3, 4, 5], output="none")
    with anyio.move_on_after(0):
        await session.trim(1)
    assert session.position == 1
    assert (await session.forward(tokens=[6], output="none")).length == 2


@pytest.mark.parametrize("position", [-1, 3])
async def test_trim_to_where_nothing_is_changes_nothing(worker: Worker, position: int) -> None:
    """A trim past the end or before the start is refused and the session goes on."""
    session = await worker.open_session()
    await session.forward(tokens=[2, 3], output="none")
    with pytest.raises(LocalProtocolError, match="cannot be trimmed"):
        await session.trim(position)
    assert (await session.forward(tokens=[4], output="none")).length == 3
