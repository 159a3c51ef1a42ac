"""Stages that are lost while they are used: the text goes on and is the same text."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import anyio
import pytest

from fakes import LAYERS, MODEL, SETTINGS, spec
from fakes import PROMPT as RESTARTS
from gguf_worker import (
    FinishReason,
    Generation,
    Output,
    Recipe,
    RestartPolicy,
    Route,
    Sampling,
    ShardSpec,
    WorkerReady,
    WorkerSettings,
)
from gguf_worker.errors import LocalProtocolError, StageLost, WorkerDied
from gguf_worker.generation.replay import ReplaySettings
from gguf_worker.process.child import ChildProcess

pytestmark = pytest.mark.anyio

PROMPT = [72, 101, 108, 108, 111]
N_TOKENS = 24
GREEDY = Sampling()
SEEDED = Sampling(temperature=20.0, seed=7, repeat_penalty=1.3, repeat_last_n=-1)
TIRELESS = replace(
    SETTINGS, restart=RestartPolicy(max_restarts=1000, backoff_initial_s=0.001, backoff_max_s=0.001)
)
PATIENT = ReplaySettings(max_losses=1000, wait_s=100.0)
FORGETFUL = replace(PATIENT, memory_bytes=0)
RECURRENT = f"{MODEL},recurrent=1"


def shards(*cuts: int, **changes: Any) -> list[ShardSpec]:
    """The fake model cut at these layers."""
    return [replace(spec(layers), **changes) for layers in pairwise((0, *cuts, LAYERS))]


def start(
    specs: Sequence[ShardSpec],
    *,
    settings: WorkerSettings = TIRELESS,
    replay: ReplaySettings = PATIENT,
    chunk_invariant: bool = False,
) -> Route:
    return Route.start(specs, settings=settings, replay=replay, chunk_invariant=chunk_invariant)


async def kill(route: Route, *stages: int) -> None:
    """Returns when their ends are known."""
    # Taken once: while one end is waited for, another worker may have been replaced already.
    workers = [route.workers[stage] for stage in stages]
    for worker in workers:
        os.kill(worker.pid, signal.SIGKILL)
    for worker in workers:
        await worker.wait_for_end()


async def undisturbed(
    specs: Sequence[ShardSpec], sampling: Sampling, prompt: Sequence[int] = PROMPT
) -> list[int]:
    async with start(specs) as route:
        return [step.token async for step in route.generate(prompt, max_tokens=N_TOKENS, sampling=sampling)]


async def disturbed(
    route: Route, stages: Sequence[int], at: int, sampling: Sampling, prompt: Sequence[int] = PROMPT
) -> Generation:
    """A generation whose stages are killed when it has drawn `at` tokens and one more."""
    generation = route.generate(prompt, max_tokens=N_TOKENS, sampling=sampling)
    async for step in generation:
        if step.index == at:
            await kill(route, *stages)
    return generation


# ---- one stage, at every position ---------------------------------------------------------------


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("replay", [PATIENT, FORGETFUL], ids=["kept", "computed again"])
@pytest.mark.parametrize("stage", [0, 1, 2])
async def test_text_is_the_same_whenever_a_stage_is_killed(
    stage: int, replay: ReplaySettings, sampling: Sampling
) -> None:
    """SIGKILL after every token: the same tokens, none missing, none twice, and no error."""
    expected = await undisturbed(shards(4, 8), sampling)
    async with start(shards(4, 8), replay=replay) as route:
        for at in range(len(expected) - 1):
            generation = await disturbed(route, [stage], at, sampling)
            assert generation.tokens == expected
            replays = [record.replays for record in generation.record.stages]
            if at == len(expected) - 2 and stage == 0 and replays == [0, 0, 0]:
                continue  # it had computed the last row already, while the one before was read
            assert replays == [int(index == stage) for index in range(3)]
        assert route.replay.budget.used == 0
        await route.wait_ready()
        assert [(await worker.health()).sessions for worker in route.workers] == [0, 0, 0]


@pytest.mark.parametrize("replay", [PATIENT, FORGETFUL], ids=["kept", "computed again"])
@pytest.mark.parametrize("stage", [0, 1, 2])
async def test_few_long_pieces_where_that_changes_no_bit(stage: int, replay: ReplaySettings) -> None:
    """With a recipe that is known to be chunk-invariant the rows are computed again in one forward."""
    expected = await undisturbed(shards(4, 8), SEEDED)
    async with start(shards(4, 8), replay=replay, chunk_invariant=True) as route:
        generation = await disturbed(route, [stage], 12, SEEDED)
        assert generation.tokens == expected
        record = generation.record.stages[stage]
        # The first stage may have had the next row already, while the last one was read.
        ahead = int(stage == 0 and record.rows_replayed == len(PROMPT) + 13)
        assert (record.replays, record.rows_replayed) == (1, len(PROMPT) + 12 + ahead)
        assert record.forwards == len(expected) + 1
        again = await disturbed(route, [0, 1, 2], 12, SEEDED)
        assert again.tokens == expected


@pytest.mark.parametrize("replay", [PATIENT, FORGETFUL], ids=["kept", "computed again"])
@pytest.mark.parametrize("recurrent", [False, True], ids=["trims", "recurrent"])
@pytest.mark.parametrize("stages", [(0, 1), (1, 2), (0, 2), (0, 1, 2)], ids=str)
async def test_several_stages_at_once(
    stages: tuple[int, ...], recurrent: bool, replay: ReplaySettings
) -> None:
    """Two or all of them are brought back together, also where sessions cannot be trimmed."""
    specs = shards(4, 8, model=RECURRENT if recurrent else MODEL)
    expected = await undisturbed(specs, SEEDED)
    async with start(specs, replay=replay) as route:
        for at in (0, 1, 9):
            generation = await disturbed(route, stages, at, SEEDED)
            assert generation.tokens == expected
            assert generation.record.replays == len(stages)


@pytest.mark.parametrize("replay", [PATIENT, FORGETFUL], ids=["kept", "computed again"])
@pytest.mark.parametrize("late", [0, 1, 2])
async def test_stage_whose_end_is_known_late(
    late: int, replay: ReplaySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All stages are killed, and two of them were replaced before the news of the third: on a busy machine a
    process takes its time to die."""
    specs = shards(4, 8)
    expected = await undisturbed(specs, SEEDED)
    async with start(specs, replay=replay) as route:
        pid, is_known = route.workers[late].pid, anyio.Event()
        wait_for_end = ChildProcess.wait_for_end

        async def wait_longer(child: ChildProcess) -> None:
            await wait_for_end(child)
            if child.pid == pid:
                await is_known.wait()

        others = [one.events(from_start=False) for one in route.supervisors if one.pid != pid]

        async def tell_when_others_are_back() -> None:
            for events in others:
                async for event in events:
                    if isinstance(event, WorkerReady):
                        break
            is_known.set()

        monkeypatch.setattr(ChildProcess, "wait_for_end", wait_longer)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tell_when_others_are_back)
            generation = await disturbed(route, [0, 1, 2], 9, SEEDED)
        assert generation.tokens == expected
        assert [stage.replays for stage in generation.record.stages] == [1, 1, 1]


# ---- in the middle of things --------------------------------------------------------------------

LONG = [2 + index % 200 for index in range(100)]
SMALL = Recipe(n_batch=16, n_ubatch=16, prefill_chunk=16)


@pytest.mark.parametrize("replay", [PATIENT, FORGETFUL], ids=["kept", "computed again"])
@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("step", [2, 4, 7])
async def test_stage_that_dies_in_a_long_prefill(stage: int, step: int, replay: ReplaySettings) -> None:
    """A crash in any piece of a pipelined prefill; the next life has no fault plan."""
    specs = shards(4, 8, recipe=SMALL)
    expected = await undisturbed(specs, SEEDED, LONG)
    faulty = [replace(one, fault_plan=f"crash@{step}") if i == stage else one for i, one in enumerate(specs)]
    async with start(faulty, replay=replay) as route:
        route.supervisors[stage].spec = specs[stage]
        generation = route.generate(LONG, max_tokens=N_TOKENS, sampling=SEEDED)
        assert [step.token async for step in generation] == expected
        assert generation.record.stages[stage].replays == 1


async def test_rows_go_on_from_where_they_were() -> None:
    """What other stages have computed of a prefill is not computed again."""
    specs = shards(4, 8, recipe=SMALL)
    faulty = [specs[0], specs[1], replace(specs[2], fault_plan="crash@6")]
    async with start(faulty) as route, route.open_chain() as chain:
        route.supervisors[2].spec = specs[2]
        await chain.forward(LONG, Output.NONE)
        first, second, last = chain.records
    assert (first.rows, second.rows) == (100, 100)
    assert (last.replays, last.rows, last.rows_replayed) == (1, 180, 80)


async def logits_of(route: Route, calls: Sequence[Sequence[int]]) -> list[bytes]:
    async with route.open_chain() as chain:
        return [bytes((await chain.forward(tokens, Output.LOGITS_ALL)).logits or b"") for tokens in calls]


@pytest.mark.parametrize("replay", [PATIENT, FORGETFUL], ids=["kept", "computed again"])
@pytest.mark.parametrize("stage", [0, 1, 2])
async def test_every_logit_is_there_once(stage: int, replay: ReplaySettings) -> None:
    """A forward that wants all logits gets each row's, whatever piece of it a stage died in."""
    specs = shards(4, 8, recipe=SMALL)
    async with start(specs) as route:
        expected = await logits_of(route, [LONG, [9]])
    for step in range(1, 8):
        faulty = [
            replace(one, fault_plan=f"crash@{step}") if i == stage else one for i, one in enumerate(specs)
        ]
        async with start(faulty, replay=replay) as route:
            route.supervisors[stage].spec = specs[stage]
            assert await logits_of(route, [LONG, [9]]) == expected


@pytest.mark.parametrize("chunk_invariant", [False, True])
@pytest.mark.parametrize("replay", [PATIENT, FORGETFUL], ids=["kept", "computed again"])
@pytest.mark.parametrize("stage", [0, 1, 2])
async def test_trims_and_forks_outlive_a_stage(
    stage: int, replay: ReplaySettings, chunk_invariant: bool
) -> None:
    """A stage that is lost before a trim, a fork or a forward: chain and fork hold what they should."""
    specs = shards(4, 8, recipe=SMALL)
    async with start(specs) as route:
        expected = await logits_of(route, [[*LONG[:40], 7]])
        forked = await logits_of(route, [[*LONG[:21], 8]])
    async with (
        start(specs, replay=replay, chunk_invariant=chunk_invariant) as route,
        route.open_chain() as chain,
    ):
        await chain.forward(LONG, Output.NONE)
        await kill(route, stage)
        await chain.trim(40)
        async with await chain.fork(21) as fork:
            await kill(route, stage)
            assert (await fork.forward([8], Output.LOGITS)).logits == forked[0][-1024:]
        await kill(route, stage)
        assert chain.position == 40
        assert (await chain.forward([7], Output.LOGITS)).logits == expected[0][-1024:]
        assert chain.tokens == (*LONG[:40], 7)


async def test_stage_that_is_killed_while_nothing_runs_is_noticed_at_the_open() -> None:
    """A session that is opened on a worker that just died waits for the next one."""
    expected = await undisturbed(shards(4, 8), GREEDY)
    async with start(shards(4, 8)) as route:
        os.kill(route.workers[1].pid, signal.SIGKILL)
        assert [step.token async for step in route.generate(PROMPT, max_tokens=N_TOKENS)] == expected


async def test_lost_again_while_it_catches_up() -> None:
    """A stage whose second life dies in the replay gets a third one."""
    specs = shards(4, 8)
    expected = await undisturbed(specs, SEEDED)
    async with start(specs) as route:
        lives = [replace(specs[1], fault_plan="crash@4"), replace(specs[1], fault_plan="crash@9"), specs[1]]
        supervisor = route.supervisors[1]
        supervisor.spec = lives.pop(0)

        async def spare_the_last() -> None:
            async for event in supervisor.events(from_start=False):
                if isinstance(event, WorkerReady) and lives:
                    supervisor.spec = lives.pop(0)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(spare_the_last)
            generation = await disturbed(route, [1], 12, SEEDED)
            tasks.cancel_scope.cancel()
        assert generation.tokens == expected
        assert [record.replays for record in generation.record.stages] == [0, 3, 0]


# ---- many at once -------------------------------------------------------------------------------


@dataclass
class Crowd:
    """Generations that share a route."""

    prompts: list[list[int]]
    tokens: dict[int, list[int]] = field(default_factory=dict)
    drawn: int = 0
    moved: anyio.Event = field(default_factory=anyio.Event)

    async def run(self, route: Route, number: int) -> None:
        generation = route.generate(
            self.prompts[number], max_tokens=N_TOKENS, sampling=replace(SEEDED, seed=number)
        )
        async for _ in generation:
            self.drawn += 1
            self.moved.set()
            self.moved = anyio.Event()
        self.tokens[number] = generation.tokens


async def test_many_generations_outlive_random_kills() -> None:
    """Sixteen at once over three workers that are killed again and again: each gives what it gives alone."""
    chance = random.Random(5)
    prompts = [[chance.randrange(2, 256) for _ in range(chance.randrange(1, 40))] for _ in range(16)]
    specs = shards(4, 8, max_sessions=16, recipe=Recipe(n_ctx=2048, n_batch=16, n_ubatch=16))
    alone, together = Crowd(prompts), Crowd(prompts)
    async with start(specs) as route:
        for number in range(16):
            await alone.run(route, number)
    async with start(specs) as route:
        async with anyio.create_task_group() as tasks:
            for number in range(16):
                tasks.start_soon(together.run, route, number)
            for kill_at in range(20, 260, 40):
                while together.drawn < kill_at and len(together.tokens) < 16:
                    await together.moved.wait()
                await kill(route, chance.randrange(3))
        assert together.tokens == alone.tokens
        assert [(await worker.health()).sessions for worker in route.workers] == [0, 0, 0]
        assert route.replay.budget.used == 0


# ---- limits -------------------------------------------------------------------------------------


async def test_limit_names_each_loss() -> None:
    """Past the limit the generation fails with all that happened to it."""
    async with start(shards(4, 8), replay=replace(PATIENT, max_losses=2)) as route:
        generation = route.generate(PROMPT, max_tokens=N_TOKENS)

        async def run() -> None:
            async for step in generation:
                await kill(route, 1 if step.index < 2 else 2)

        with pytest.raises(StageLost, match=r"3 stages were lost .* layers 4:8: .* layers 8:12: ") as caught:
            await run()
        assert caught.value.code == "replay_limit"
        assert generation.finish_reason is FinishReason.ERROR
        assert (generation.record.error, generation.record.finish_reason) == ("replay_limit", "error")
        assert [record.replays for record in generation.record.stages] == [0, 2, 1]


async def test_without_replay_the_first_loss_is_told() -> None:
    """`max_losses` 0 ends a sequence at its first loss, with the worker's own death."""
    async with start(shards(4, 8), replay=replace(PATIENT, max_losses=0)) as route:
        with pytest.raises(WorkerDied):
            await disturbed(route, [1], 2, GREEDY)


async def test_stage_that_was_given_up_ends_the_sequence() -> None:
    """A worker that is not started again any more is told with the reason, at once."""
    settings = replace(SETTINGS, restart=replace(RESTARTS, max_restarts=1))
    async with start(shards(4, 8), settings=settings) as route:
        await disturbed(route, [1], 2, GREEDY)
        with pytest.raises(StageLost, match=r"layers 4:8 will not be ready again: .*given up"):
            await disturbed(route, [1], 2, GREEDY)


async def test_stage_that_does_not_come_back_in_time() -> None:
    """The wait for a stage is bounded."""
    specs = shards(4, 8)
    async with start(specs, replay=replace(PATIENT, wait_s=0.05)) as route:
        route.supervisors[1].spec = replace(specs[1], fault_plan="load-slow:60000")
        with pytest.raises(StageLost, match=r"layers 4:8 did not come back within 0\.05 s"):
            await disturbed(route, [1], 2, GREEDY)


async def test_chain_that_gave_up_can_be_tried_again() -> None:
    """The history is that of the last forward that succeeded; the stage is brought back by the next one."""
    specs = shards(4, 8)
    async with start(specs) as route:
        expected = await logits_of(route, [[*PROMPT, 9]])
    async with start(specs, replay=replace(PATIENT, wait_s=0.05)) as route, route.open_chain() as chain:
        await chain.forward(PROMPT, Output.NONE)
        route.supervisors[1].spec = replace(specs[1], fault_plan="load-slow:300")
        await kill(route, 1)
        with pytest.raises(StageLost, match="did not come back"):
            await chain.forward([9], Output.LOGITS)
        assert chain.position == len(PROMPT)
        await route.wait_ready()
        assert (await chain.forward([9], Output.LOGITS)).logits == expected[0][-1024:]
        with pytest.raises(LocalProtocolError):
            await chain.trim(99)


async def test_kept_rows_stay_within_the_budget() -> None:
    """All sequences of a route together keep no more than they may, and give it back."""
    row = 8 * 4
    limit = 150 * row
    async with start(shards(3, 6, 9), replay=replace(PATIENT, memory_bytes=limit)) as route:
        expected = await logits_of(route, [LONG, [9], [10]])
        budget = route.replay.budget
        async with route.open_chain() as one, route.open_chain() as other:
            for chain in (one, other):
                await chain.forward(LONG, Output.NONE)
                assert 0 < budget.used <= limit
            for stage in range(4):
                await kill(route, stage)
                for chain in (one, other):
                    await chain.forward([9], Output.NONE)
                    assert budget.used <= limit
                    result = await chain.forward([10], Output.LOGITS)
                    assert result.logits == expected[2]
                    await chain.trim(len(LONG))
        assert budget.used == 0
