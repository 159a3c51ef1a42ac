"""Routes of workers with the fake engine: exact, streamed, cancelled, killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import anyio
import anyio.lowlevel
import pytest

from fakes import LAYERS, MODEL, SETTINGS, spec
from gguf_worker import ExitCause, FinishReason, Output, Progress, Recipe, Route, SessionChain, ShardSpec
from gguf_worker.errors import (
    LoadRejected,
    LocalProtocolError,
    RequestError,
    RouteError,
    StartupError,
    WorkerDied,
)

pytestmark = pytest.mark.anyio

PROMPT = [72, 101, 108, 108, 111]


def shards(*cuts: int, **changes: object) -> list[ShardSpec]:
    """The fake model cut at these layers."""
    return [spec(layers, **changes) for layers in pairwise((0, *cuts, LAYERS))]


async def logits_of(route: Route, calls: Sequence[Sequence[int]]) -> list[bytes]:
    """All logits of the tokens of each call, one call after the other in one session."""
    async with route.open_chain() as chain:
        return [bytes((await chain.forward(tokens, Output.LOGITS_ALL)).logits or b"") for tokens in calls]


@pytest.mark.parametrize("cuts", [(6,), (4, 8), (1, 11), (3, 7, 9)], ids=str)
async def test_chain_equals_the_unsplit_model_bit_for_bit(cuts: tuple[int, ...]) -> None:
    """A prefill and decode steps through any cuts give the very logits of one worker."""
    calls = [PROMPT, [33], [34], [35, 36]]
    async with Route.start(shards(), settings=SETTINGS) as whole:
        expected = await logits_of(whole, calls)
    async with Route.start(shards(*cuts), settings=SETTINGS) as route:
        assert await logits_of(route, calls) == expected
    assert [len(rows) for rows in expected] == [4 * 256 * len(tokens) for tokens in calls]


async def test_long_prefill_in_pieces_equals_the_unsplit_model() -> None:
    """A prefill that overlaps in several stages gives the same logits as one that fits in a step."""
    tokens = [2 + index % 200 for index in range(100)]
    small = Recipe(n_batch=16, n_ubatch=16)
    async with Route.start(shards(), settings=SETTINGS) as whole:
        expected = await logits_of(whole, [tokens, [9]])
    async with Route.start(shards(4, 8, recipe=small), settings=SETTINGS) as route:
        assert await logits_of(route, [tokens, [9]]) == expected


async def test_generate_streams_the_same_tokens_through_any_cuts() -> None:
    """Greedy generation, step by step, is the same for one worker and for three."""
    runs = []
    for cuts in ((), (4, 8)):
        async with Route.start(shards(*cuts), settings=SETTINGS) as route:
            generation = route.generate(PROMPT, max_tokens=24)
            steps = [step async for step in generation]
            assert [step.index for step in steps] == list(range(len(steps)))
            assert generation.tokens == [step.token for step in steps]
            assert generation.finish_reason is steps[-1].finish_reason
            assert [step.finish_reason for step in steps[:-1]] == [None] * (len(steps) - 1)
            assert generation.timings.prefill_tokens == len(PROMPT)
            assert generation.timings.decode_tokens == len(steps) - 1
            assert generation.timings.prefill_tokens_per_s > 0
            assert (await route.workers[0].health()).sessions == 0
            runs.append(steps)
    assert runs[0] == runs[1]


async def test_generate_gives_the_bytes_of_each_token() -> None:
    """The text of the steps is the text of the tokens; the end of a generation has none."""
    async with Route.start(shards(6), settings=SETTINGS) as route:
        steps = [step async for step in route.generate(PROMPT, max_tokens=24)]
        shown = [step.token for step in steps if not step.end_of_generation]
        whole = await route.workers[0].detokenize([PROMPT[-1], *shown])
    assert bytes([PROMPT[-1]]) + b"".join(step.text_bytes for step in steps) == whole


async def test_generate_ends_with_length_when_enough_or_the_context_is_full() -> None:
    """`length` means that somebody's limit was met: the caller's, or the recipe's context."""
    tiny = Recipe(n_ctx=256, n_batch=256, n_ubatch=256)
    async with Route.start(shards(6, recipe=tiny), settings=SETTINGS) as route:
        for prompt, max_tokens, expected in (([2] * 3, 2, 2), ([2] * 255, 10, 2), ([2] * 256, 10, 1)):
            generation = route.generate(prompt, max_tokens=max_tokens)
            tokens = [step.token async for step in generation]
            if generation.finish_reason is FinishReason.STOP:
                assert len(tokens) <= expected
            else:
                assert len(tokens) == expected
        with pytest.raises(RequestError) as caught:
            _ = [step async for step in route.generate([2] * 257, max_tokens=1)]
        assert caught.value.code == "capacity"


async def test_generate_stops_at_the_models_own_end() -> None:
    """A prompt whose continuation ends a generation ends with `stop`, and its last token is said."""
    async with Route.start(shards(6), settings=SETTINGS) as route:
        for first in range(2, 256):
            generation = route.generate([first], max_tokens=12)
            steps = [step async for step in generation]
            if generation.finish_reason is FinishReason.STOP:
                assert steps[-1].end_of_generation
                assert steps[-1].text_bytes == b""
                return
    pytest.fail("no prompt of one token ended within 12 tokens: choose another seed")


async def test_generation_left_early_ends_its_sessions() -> None:
    """A loop that is left early frees the sessions of every stage at once."""
    async with Route.start(shards(6), settings=SETTINGS) as route:
        async with route.generate(PROMPT, max_tokens=50) as generation:
            async for _ in generation:
                break
        assert [(await worker.health()).sessions for worker in route.workers] == [0, 0]


async def test_many_generations_at_once_do_not_mix() -> None:
    """Generations that share the workers give what each gives alone."""
    prompts = [[2, 3], [50], [99, 98, 97], [120]]

    async def run(route: Route, prompt: list[int]) -> list[int]:
        return [step.token async for step in route.generate(prompt, max_tokens=10)]

    async with Route.start(shards(4, 8), settings=SETTINGS) as route:
        alone = [await run(route, prompt) for prompt in prompts]
        together: dict[int, list[int]] = {}

        async def keep(index: int) -> None:
            together[index] = await run(route, prompts[index])

        async with anyio.create_task_group() as tasks:
            for index in range(len(prompts)):
                tasks.start_soon(keep, index)
    assert [together[index] for index in range(len(prompts))] == alone


async def test_chain_after_a_cancelled_forward_goes_on_exactly() -> None:
    """Stages that came to different lengths forget the cancelled rows, and the result is as if it never
    was."""
    plain = shards(4, 8)
    hanging = [plain[0], replace(plain[1], fault_plan="hang@2"), plain[2]]

    async def forward(chain: SessionChain) -> None:
        await chain.forward([40, 41], Output.NONE)

    async with Route.start(plain, settings=SETTINGS) as route:
        expected = await logits_of(route, [PROMPT, [50]])
    async with Route.start(hanging, settings=SETTINGS) as route, route.open_chain() as chain:
        first = await chain.forward(PROMPT, Output.LOGITS_ALL)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(forward, chain)
            with anyio.fail_after(10):
                while (await route.workers[1].health()).state != "computing":
                    pass
            tasks.cancel_scope.cancel()
        assert chain.position == len(PROMPT)
        second = await chain.forward([50], Output.LOGITS_ALL)
    assert [first.logits, second.logits] == expected


async def test_chain_that_cannot_be_undone_says_so_and_starts_again() -> None:
    """Recurrent state cannot be trimmed: after a cancelled forward such a chain refuses to go on, until it is
    trimmed to nothing."""
    recurrent = [replace(one, model=f"{MODEL},recurrent=1") for one in shards(4, 8)]
    hanging = [recurrent[0], replace(recurrent[1], fault_plan="hang@2"), recurrent[2]]
    async with Route.start(recurrent, settings=SETTINGS) as route:
        expected = await logits_of(route, [PROMPT])
    async with Route.start(hanging, settings=SETTINGS) as route, route.open_chain() as chain:
        await chain.forward(PROMPT, Output.NONE)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(chain.forward, [40, 41], Output.NONE)
            with anyio.fail_after(10):
                while (await route.workers[1].health()).state != "computing":
                    pass
            tasks.cancel_scope.cancel()
        for _ in range(2):
            with pytest.raises(RequestError) as caught:
                await chain.forward([50], Output.NONE)
            assert caught.value.code == "unsupported"
        await chain.trim(0)
        assert [(await chain.forward(PROMPT, Output.LOGITS_ALL)).logits] == expected


async def kill_a_stage_in_mid_generation(route: Route) -> None:
    async for step in route.generate(PROMPT, max_tokens=50):
        if step.index == 2:
            os.kill(route.workers[1].pid, signal.SIGKILL)
            await route.workers[1].wait_for_end()


async def test_route_with_a_killed_stage_fails_its_generation() -> None:
    """A stage that is killed ends the generation with WorkerDied; the other stages are stopped cleanly."""
    route = Route.start(shards(4, 8), settings=SETTINGS)
    async with route:
        with pytest.raises(WorkerDied) as caught:
            await kill_a_stage_in_mid_generation(route)
        assert caught.value.exit.signal == signal.SIGKILL
        assert [(await route.workers[index].health()).sessions for index in (0, 2)] == [0, 0]
    causes = [supervisor.exit.cause for supervisor in route.supervisors if supervisor.exit is not None]
    assert causes == [ExitCause.CLEAN, ExitCause.SIGNAL_OTHER, ExitCause.CLEAN]


async def test_route_with_a_stage_that_cannot_load_leaves_no_worker() -> None:
    """The first error ends the whole start, as one plain exception, and the stages that are still loading."""
    plain = shards(4, 8)
    specs = [
        plain[0],
        replace(plain[1], fault_plan="load-fail"),
        replace(plain[2], fault_plan="load-slow:60000"),
    ]
    route = Route.start(specs, settings=SETTINGS)
    with pytest.raises(LoadRejected):
        async with route:
            pytest.fail("the route must not become ready")
    assert all(
        supervisor.release is not None and supervisor.release.complete for supervisor in route.supervisors
    )


async def test_route_of_two_artifacts_is_refused() -> None:
    """Shards of different artifacts never become a route, and both digests are named."""
    other = replace(shards(6)[1], model="fake:layers=12,embd=8,vocab=256,seed=2")
    with pytest.raises(RouteError) as caught:
        async with Route.start([shards(6)[0], other], settings=SETTINGS):
            pytest.fail("the route must not become ready")
    assert caught.value.fields["artifact.expected"] != caught.value.fields["artifact.actual"]


async def test_route_that_is_too_short_is_refused() -> None:
    """A route must reach the model's last layer."""
    with pytest.raises(RouteError) as caught:
        async with Route.start([spec((0, 4)), spec((4, 11))], settings=SETTINGS):
            pytest.fail("the route must not become ready")
    assert caught.value.fields == {"end.expected": "12", "end.actual": "11"}


async def test_route_reports_progress_of_each_stage() -> None:
    """The callbacks say which stage they speak of."""
    seen: list[tuple[int, Progress]] = []
    async with Route.start(
        shards(6), settings=SETTINGS, on_progress=lambda *what: seen.append(what)
    ) as route:
        assert "stage" not in repr(route)
        assert repr(route).count("ready") == 2
    assert {index for index, _ in seen} == {0, 1}
    assert {progress.phase for _, progress in seen} >= {"load", "warm-up"}


async def test_route_cancelled_while_starting_leaves_nothing() -> None:
    """A start that is cancelled stops every worker first."""
    route = Route.start(shards(6, fault_plan="load-slow:60000"), settings=SETTINGS)
    with anyio.CancelScope() as scope:

        async def enter() -> None:
            async with route:
                pytest.fail("the route must not become ready")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(enter)
            with anyio.fail_after(10):
                while any(supervisor.state != "loading" for supervisor in route.supervisors):
                    await anyio.lowlevel.checkpoint()
            scope.cancel()
    assert [supervisor.state for supervisor in route.supervisors] == ["stopped", "stopped"]


async def test_route_without_an_executable_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """No executable is a StartupError with the remedy."""
    monkeypatch.setenv("GGUF_WORKER_EXECUTABLE", "/nowhere/gguf-shard-worker")
    with pytest.raises(StartupError, match="correct or unset it") as caught:
        async with Route.start(shards(6), settings=SETTINGS):
            pytest.fail("the route must not become ready")
    assert caught.value.code == "executable_not_found"


@pytest.mark.parametrize(("prompt", "max_tokens"), [([], 1), ([2], 0)])
async def test_generate_of_nothing_is_refused(prompt: list[int], max_tokens: int) -> None:
    """A generation needs something to start from and something to do."""
    async with Route.start(shards(), settings=SETTINGS) as route:
        with pytest.raises(ValueError, match="at least"):
            route.generate(prompt, max_tokens=max_tokens)


@pytest.mark.parametrize("position", [-1, 9])
async def test_chain_refuses_a_trim_and_goes_on(position: int) -> None:
    """A trim to where the chain has no rows is refused before anything happens."""
    async with Route.start(shards(6), settings=SETTINGS) as route, route.open_chain() as chain:
        await chain.forward(PROMPT, Output.NONE)
        with pytest.raises(LocalProtocolError, match="cannot be trimmed"):
            await chain.trim(position)
        assert chain.position == len(PROMPT)
        await chain.forward([33], Output.NONE)
        assert chain.position == len(PROMPT) + 1


async def test_stage_that_dies_while_another_loads_ends_the_start() -> None:
    """The route does not become ready with a dead stage, and does not wait for the slow one to say so."""
    first, second = shards(6)
    route = Route.start([first, replace(second, fault_plan="load-slow:60000")], settings=SETTINGS)
    async with anyio.create_task_group() as tasks:

        async def kill_the_first() -> None:
            while (worker := route.supervisors[0].worker) is None:  # noqa: ASYNC110 - bounded by the test
                await anyio.sleep(0.01)
            os.kill(worker.pid, signal.SIGKILL)

        tasks.start_soon(kill_the_first)
        with anyio.fail_after(20), pytest.raises(WorkerDied):
            await route.__aenter__()
