"""How a generation ends, what its stages are told, and what its record says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import anyio
import anyio.lowlevel
import pytest

from fakes import SETTINGS, spec
from gguf_worker import FinishReason, Generation, Output, Route, Sampling, Session, Supervisor, Worker
from gguf_worker.errors import RequestError, RequestTimeout, StageLost
from gguf_worker.generation.local import LocalSource
from gguf_worker.generation.replay import ReplaySettings
from gguf_worker.generation.stage import Stage, StageSession, StageSource
from gguf_worker.work import Work
from stand_in import ROW_BYTES, Fate, Rules, StandInSession, StandInSource, StandInStage

pytestmark = pytest.mark.anyio

PROMPT = list(range(2, 22))


def route_of(rules: Rules, **changes: int) -> tuple[Route, list[StandInSource]]:
    """Three stages of a model in plain Python."""
    sources = [StandInSource(rules, layers) for layers in pairwise((0, 4, 8, 12))]
    return Route(sources, replay=ReplaySettings(**{"max_losses": 100, "wait_s": 10, **changes})), sources


def ends_of(sources: list[StandInSource]) -> list[list[tuple[str, str]]]:
    """What each stage was told, over all that filled its place."""
    return [[end for stage in source.stages for end in stage.ends] for source in sources]


def is_a_stage(worker: Worker, stand_in: StandInStage) -> tuple[Stage, Stage]:
    """Checked by the type checker."""
    return worker, stand_in


def is_a_session(session: Session, stand_in: StandInSession) -> tuple[StageSession, StageSession]:
    """Checked by the type checker."""
    return session, stand_in


def is_a_source(source: LocalSource, stand_in: StandInSource) -> tuple[StageSource, StageSource]:
    """Checked by the type checker."""
    return source, stand_in


async def test_normal_end_is_told_to_every_stage() -> None:
    """Each session is closed once, with the reason, and each acknowledges its rows."""
    route, sources = route_of(Rules())
    generation = route.generate(PROMPT, max_tokens=5, work=Work(request_id="r", work_id="w"))
    assert len([step async for step in generation]) == 5
    assert ends_of(sources) == [[("close", "length")]] * 3
    assert [source.sessions for source in sources] == [[], [], []]
    assert {work.work_id for source in sources for work in source.stages[0].works if work} == {"w"}
    record = generation.record
    assert (record.request_id, record.work_id, record.finish_reason, record.error) == ("r", "w", "length", "")
    assert (record.prompt_tokens, record.tokens, len(record.token_us), record.replays) == (20, 5, 4, 0)
    assert record.time_to_first_token_us is not None
    assert record.total_us >= record.time_to_first_token_us + sum(record.token_us)
    for index, stage in enumerate(record.stages):
        # A prompt of 20 rows in pieces of 8, and a row for each token but the last.
        assert (stage.forwards, stage.rows, stage.rows_replayed) == (7, 24, 0)
        assert (stage.queue_us, stage.compute_us, stage.batch_rows) == (7, 14, 24)
        assert stage.kv_cells_freed == 24
        assert stage.bytes_out == (4 * 24 if index != 1 else 0) + (ROW_BYTES * 24 if index else 0)
        assert stage.bytes_in == (ROW_BYTES * 24 if index < 2 else 0)
        assert stage.label == f"layers {4 * index}:{4 * index + 4} on 0"


async def test_end_at_the_context_of_the_smallest_stage() -> None:
    """The context of a chain is that of its smallest stage."""
    route, _ = route_of(Rules(n_ctx=22))
    generation = route.generate(PROMPT, max_tokens=50)
    assert len([step async for step in generation]) == 3
    assert generation.finish_reason is FinishReason.LENGTH


async def take(generation: Generation, count: int) -> None:
    async for step in generation:
        if step.index + 1 == count:
            break


async def test_generation_that_is_left_early_is_cancelled_on_every_stage() -> None:
    """Each stage acknowledges its rows before the context is left."""
    route, sources = route_of(Rules())
    async with route.generate(PROMPT, max_tokens=5) as generation:
        await take(generation, 2)
    assert ends_of(sources) == [[("cancel", "cancelled")]] * 3
    assert (generation.finish_reason, generation.record.finish_reason) == (
        FinishReason.CANCELLED,
        "cancelled",
    )
    assert [stage.kv_cells_freed for stage in generation.record.stages] == [21, 21, 21]


async def test_generation_that_is_left_at_its_last_step_has_ended() -> None:
    """Nobody is told of a cancellation when all was said."""
    route, sources = route_of(Rules())
    async with route.generate(PROMPT, max_tokens=2) as generation:
        await take(generation, 2)
    assert ends_of(sources) == [[("close", "length")]] * 3


@asynccontextmanager
async def running(generation: Generation) -> AsyncIterator[anyio.CancelScope]:
    """In a task, until it ends or is cancelled."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take, generation, 1000)
        yield tasks.cancel_scope


@pytest.mark.parametrize("calls", [2, 5, 7, 12, 16, 20, 25])
async def test_cancelled_task_leaves_no_session(calls: int) -> None:
    """A task that is cancelled in the open, the prefill or a decode step: every stage is told, shielded."""
    reached = anyio.Event()
    fate = Fate(on_call=lambda _kind, _stage: reached.set() if fate.calls >= calls else None)
    route, sources = route_of(Rules(fate=fate))
    generation = route.generate(PROMPT, max_tokens=50)
    async with running(generation) as scope:
        await reached.wait()
        scope.cancel()
    assert [source.sessions for source in sources] == [[], [], []]
    assert generation.record.finish_reason == "cancelled"
    assert route.replay.budget.used == 0
    if calls > 3:
        assert ends_of(sources) == [[("cancel", "cancelled")]] * 3


async def test_deadline_ends_a_generation_on_every_stage() -> None:
    """It passes while a stage computes: the code is `deadline`, and each stage is told to give it up."""
    route, sources = route_of(Rules(fate=Fate(held="forward")))
    work = Work(deadline=anyio.current_time() + 0.05)
    generation = route.generate(PROMPT, max_tokens=5, work=work)
    with pytest.raises(RequestTimeout) as caught:
        await take(generation, 5)
    assert caught.value.code == "deadline"
    assert caught.value.fields == {"request_id": work.request_id, "work_id": work.work_id}
    assert ends_of(sources) == [[("cancel", "deadline")]] * 3
    assert (generation.finish_reason, generation.record.error) == (FinishReason.DEADLINE, "deadline")


async def test_deadline_that_has_passed_opens_nothing() -> None:
    """Nobody waits for it any more."""
    route, sources = route_of(Rules())
    generation = route.generate(PROMPT, max_tokens=5, work=Work(deadline=anyio.current_time() - 1))
    with pytest.raises(RequestTimeout):
        await take(generation, 5)
    assert [source.sessions for source in sources] == [[], [], []]
    assert generation.record.finish_reason == "deadline"


async def test_failed_generation_is_closed_as_an_error() -> None:
    """An error of a stage is the generation's, and its code is in the record."""
    route, sources = route_of(Rules(can_trim=False))

    def refuse(kind: str, stage: StandInStage) -> None:
        if kind == "forward" and stage.layers[0] == 4 and len(stage.pieces) == 4:
            raise RequestError("not a number", code="non_finite")

    sources[0].rules.fate.on_call = refuse
    generation = route.generate(PROMPT, max_tokens=50)
    with pytest.raises(RequestError):
        await take(generation, 50)
    assert ends_of(sources) == [[("close", "error")]] * 3
    assert (generation.record.finish_reason, generation.record.error) == ("error", "non_finite")


async def test_stage_that_is_lost_at_the_end_acknowledges_nothing() -> None:
    """Nothing is brought back for that, and nobody is told of an error."""
    route, sources = route_of(Rules())

    def lose(kind: str, stage: StandInStage) -> None:
        stage.is_gone = stage.is_gone or (kind == "close" and stage.layers[0] == 4)

    sources[0].rules.fate.on_call = lose
    generation = route.generate(PROMPT, max_tokens=2)
    await take(generation, 50)
    assert [stage.kv_cells_freed for stage in generation.record.stages] == [21, None, 21]
    assert generation.record.replays == 0


async def test_end_that_fails_leaves_no_session() -> None:
    """Whatever goes wrong when the stages are told, sessions end and rows are given back."""

    def fail(kind: str, _stage: StandInStage) -> None:
        if kind == "close":
            raise ValueError("nobody thought of this")

    route, sources = route_of(Rules(fate=Fate(on_call=fail)))
    with pytest.raises(ValueError, match="nobody thought of this"):
        await take(route.generate(PROMPT, max_tokens=2), 3)
    assert [source.sessions for source in sources] == [[], [], []]
    assert route.replay.budget.used == 0


async def test_sessions_are_released_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages that do not answer cost their patience once, not once each."""
    waiting: list[StandInSession] = []
    all_wait = anyio.Event()
    met: list[bool] = []

    async def release(session: StandInSession) -> None:
        waiting.append(session)
        if len(waiting) == 3:
            all_wait.set()
        with anyio.move_on_after(1):
            await all_wait.wait()
        met.append(all_wait.is_set())

    monkeypatch.setattr(StandInSession, "release", release)
    route, _ = route_of(Rules())
    async with route.open_chain() as chain:
        await chain.forward(PROMPT, Output.NONE)
    assert met == [True, True, True]


async def test_replayed_stage_is_given_the_pieces_of_the_first_time() -> None:
    """The same rows in the same pieces, and nothing drawn again; the work is the same, at another attempt."""
    route, sources = route_of(Rules())

    def lose(kind: str, stage: StandInStage) -> None:
        stage.is_gone = stage.is_gone or (
            kind == "forward" and stage.label == "layers 8:12 on 0" and len(stage.pieces) == 5
        )

    sources[0].rules.fate.on_call = lose
    generation = route.generate(PROMPT, max_tokens=4, sampling=Sampling(seed=1), work=Work(work_id="w"))
    await take(generation, 50)
    first, second = sources[2].stages
    starts = [(0, 8), (8, 8), (16, 4), (20, 1), (21, 1)]
    assert [piece[:2] for piece in first.pieces] == starts
    assert [piece[:2] for piece in second.pieces] == [*starts, (22, 1)]
    assert [output for *_, output in second.pieces] == [Output.NONE] * 5 + [Output.TOKEN]
    assert [(work.work_id, work.attempt) for work in (*first.works, *second.works) if work] == [
        ("w", 0),
        ("w", 1),
    ]
    record = generation.record.stages[2]
    assert (record.replays, record.rows, record.rows_replayed, record.forwards) == (1, 22 + 23, 22, 5 + 6)
    assert (record.label, record.kv_cells_freed) == ("layers 8:12 on 1", 23)
    assert record.replay_us > 0
    assert [stage.rows_replayed for stage in generation.record.stages[:2]] == [0, 0]


async def test_rows_that_are_not_kept_are_computed_again() -> None:
    """The stages before a lost one compute its rows again, and the one behind it is left alone."""
    route, sources = route_of(Rules(), memory_bytes=0)

    def lose(kind: str, stage: StandInStage) -> None:
        stage.is_gone = stage.is_gone or (
            kind == "forward" and stage.label == "layers 4:8 on 0" and len(stage.pieces) == 5
        )

    sources[0].rules.fate.on_call = lose
    generation = route.generate(PROMPT, max_tokens=4)
    await take(generation, 50)
    stages = generation.record.stages
    assert [stage.rows_replayed for stage in stages] == [23, 22, 0]
    assert [stage.replays for stage in stages] == [0, 1, 0]
    assert len(sources[0].stages) == 1


async def test_no_room_on_the_stage_that_takes_over_is_waited_for() -> None:
    """Others open their sessions again, too: a refusal that may pass is tried again."""
    fate = Fate(lost_before=frozenset([6]), refused=frozenset([7, 8, 9, 10, 11]))
    route, sources = route_of(Rules(fate=fate))
    generation = route.generate(PROMPT, max_tokens=4)
    await take(generation, 50)
    assert generation.finish_reason is FinishReason.LENGTH
    assert max(len(source.stages) for source in sources) == 2


async def test_open_that_is_refused_is_told_at_once() -> None:
    """Nobody waits for a first session, and none stays open."""
    route, sources = route_of(Rules(fate=Fate(refused=frozenset([2]))))
    generation = route.generate(PROMPT, max_tokens=4)
    with pytest.raises(RequestError):
        await take(generation, 50)
    assert [source.sessions for source in sources] == [[], [], []]
    assert (generation.record.finish_reason, generation.record.error) == ("error", "capacity")


async def test_session_is_cancelled_while_a_task_waits_for_it() -> None:
    """A worker's session ends with what it computes: the task is told `cancelled`, the cells are free."""
    async with Supervisor(spec(fault_plan="hang@2"), settings=SETTINGS) as worker:
        session = await worker.open_session(work=Work())
        await session.forward(tokens=[2, 3, 4], output="none")
        caught: list[str] = []

        async def forward() -> None:
            try:
                await session.forward(tokens=[5], output="none")
            except RequestError as error:
                caught.append(error.code)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(forward)
            while (await worker.health()).state != "computing":
                await anyio.lowlevel.checkpoint()
            assert await session.cancel("cancelled") == 3
            assert await session.cancel("cancelled") == 0
        assert caught == ["cancelled"]
        health = await worker.health()
        assert (health.sessions, health.kv_cells_used) == (0, 0)


async def test_ids_of_a_work_are_in_the_log_of_its_requests(caplog: pytest.LogCaptureFixture) -> None:
    """Each request that a generation makes of a worker names its request and its work."""
    caplog.set_level("DEBUG", "gguf_worker.requests")
    work = Work(request_id="the request", work_id="the work")
    async with Route.start([spec((0, 6)), spec((6, 12))], settings=SETTINGS) as route:
        caplog.clear()
        async with route.generate([2, 3], max_tokens=2, work=work) as generation:
            await take(generation, 2)
    requests = [vars(line) for line in caplog.records if line.name == "gguf_worker.requests"]
    ours = [line for line in requests if line["request_type"] in ("open", "forward", "close")]
    assert {(line["request_id"], line["work_id"]) for line in ours} == {("the request", "the work")}
    assert {line["finish_reason"] for line in ours if line["request_type"] == "close"} == {"length"}
    assert len(ours) == 2 * 4


async def test_tokenizer_that_is_lost_is_asked_again() -> None:
    """As often as a sequence outlives; a stage that is lost once more is told."""
    route, _ = route_of(Rules())
    with pytest.raises(NotImplementedError):
        await route.tokenize("a")
    most = route.replay.settings.max_losses
    losses = [StageLost("gone") for _ in range(most + 1)]

    async def ask(_stage: Stage) -> str:
        if losses:
            raise losses.pop()
        return "text"

    with pytest.raises(StageLost):
        await route._ask_vocabulary(ask)
    losses += [StageLost("gone") for _ in range(most)]
    assert await route._ask_vocabulary(ask) == "text"
