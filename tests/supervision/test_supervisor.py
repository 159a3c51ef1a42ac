"""The supervisor as a whole: refusals, many at once, both event loops, no leaks."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import anyio
import psutil
import pytest

from fakes import IMPATIENT, SETTINGS, spec
from gguf_worker import (
    Identity,
    Progress,
    Recipe,
    ShardSpec,
    StopRung,
    Supervisor,
    WorkerState,
    inspect,
    slice_artifact,
)
from gguf_worker.errors import (
    ExecutableNotFound,
    LoadRejected,
    RequestError,
    SpawnFailed,
    StartupError,
    WorkerStopped,
)
from gguf_worker.supervision.environment import default_environment
from gguf_worker.testing import Baseline, Footprint
from misbehaving import executable

pytestmark = pytest.mark.anyio

UVLOOP = {"use_uvloop": True}


async def test_supervisor_shows_state_pid_identity_and_restarts() -> None:
    """What a supervisor is can be seen from outside at any time."""
    supervisor = Supervisor(spec(), settings=SETTINGS)
    assert repr(supervisor) == "<Supervisor starting pid=None identity=None restarts=0>"
    async with supervisor as worker:
        assert supervisor.worker is worker
        assert (
            repr(supervisor) == f"<Supervisor ready pid={worker.pid} identity={worker.identity} restarts=0>"
        )
    assert supervisor.state is WorkerState.STOPPED
    with pytest.raises(RuntimeError, match="entered once"):
        await supervisor.__aenter__()


async def test_hosts_environment_goes_before_what_workers_get_by_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A variable that the host has set, or given in the settings, is the worker's; others are added."""
    for name in default_environment(gives_way=True):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    given = replace(SETTINGS, environment={"OF_ITS_OWN": "yes"})
    async with Supervisor(spec((0, 6)), settings=given) as worker:
        found = psutil.Process(worker.pid).environ()
    expected = {**default_environment(gives_way=True), "GOMP_SPINCOUNT": "7", "OF_ITS_OWN": "yes"}
    assert {name: found.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("shard", "gives_way"),
    [
        (spec(), False),
        (spec((0, 12), n_stages=1), False),
        (spec((0, 12)), True),  # nobody said that there are no other stages
        (spec((0, 6), n_stages=2), True),
        (spec((6, 0)), True),
    ],
    ids=["whole", "one stage", "not known", "first", "last"],
)
async def test_threads_give_way_where_there_are_other_stages(
    shard: ShardSpec, gives_way: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    async with Supervisor(shard, settings=SETTINGS) as worker:
        found = psutil.Process(worker.pid).environ()
    assert ("GOMP_SPINCOUNT" in found) == gives_way


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no priority of their own")
@pytest.mark.parametrize("compute_nice", [0, 7])
async def test_threads_that_compute_give_way_and_the_one_that_answers_does_not(compute_nice: int) -> None:
    async with Supervisor(spec(), settings=replace(SETTINGS, compute_nice=compute_nice)) as worker:
        threads = [thread.id for thread in psutil.Process(worker.pid).threads()]
        nice = {thread: os.getpriority(os.PRIO_PROCESS, thread) for thread in threads}
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert nice.pop(worker.pid) == own
    assert max(nice.values()) == own + compute_nice


@pytest.mark.parametrize("compute_nice", [-1, 20])
def test_priority_that_cannot_be_is_refused_before_any_worker(compute_nice: int) -> None:
    with pytest.raises(ValueError, match=f"compute_nice is {compute_nice}; give 0 to 19"):
        replace(SETTINGS, compute_nice=compute_nice)


async def test_supervisor_stops_its_worker_by_request_and_measures_the_release() -> None:
    """A healthy worker goes when asked, says what it released, and everything is verified."""
    supervisor = Supervisor(spec(), settings=SETTINGS)
    async with supervisor as worker:
        session = await worker.open_session()
        await session.forward(tokens=[2, 3, 4], output="none")
        memory = worker.memory
    release = supervisor.release
    assert release is not None
    assert release.stop_rung is StopRung.REQUEST
    assert (release.process_reaped, release.descriptors_closed, release.group_empty) == (True, True, True)
    assert release.unreleased == ()
    assert release.bye is not None
    assert (release.bye.sessions, release.bye.kv_cells) == (1, 3)
    assert release.bye.weights_bytes == memory.weights_bytes


async def test_supervisor_reports_progress_of_the_load() -> None:
    """Progress says phase, bytes done and bytes in all; a callback that fails stops nothing."""
    seen: list[Progress] = []

    def report(progress: Progress) -> None:
        seen.append(progress)
        raise ValueError("a listener's mistake")

    async with Supervisor(spec(), settings=SETTINGS, on_progress=report) as worker:
        assert await worker.ping() > 0
    load = [progress for progress in seen if progress.phase == "load"]
    assert load[0].done == 0
    assert load[-1].done == load[-1].total > 0


async def test_second_load_is_refused_and_disturbs_nothing() -> None:
    """A worker holds one identity for its life, whatever a second load asks for."""
    async with Supervisor(spec(), settings=SETTINGS) as worker:
        session = await worker.open_session()
        before = await session.forward(tokens=[2, 3], output="logits")
        for again in (spec(), spec((0, 6))):
            with pytest.raises(RequestError) as caught:
                await worker.load(again)
            assert caught.value.code == "identity"
        await session.trim(0)
        assert (await session.forward(tokens=[2, 3], output="logits")).logits == before.logits


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda mine: replace(mine, artifact="0" * 64), "artifact"),
        (lambda mine: replace(mine, start=1), "start"),
        (lambda mine: replace(mine, end=11), "end"),
        (lambda mine: replace(mine, recipe=replace(mine.recipe, n_ctx=8192)), "recipe.n_ctx"),
        (lambda mine: replace(mine, recipe=replace(mine.recipe, flash_attn=False)), "recipe.flash_attn"),
    ],
    ids=["artifact", "start", "end", "n_ctx", "flash_attn"],
)
async def test_open_of_another_identity_is_refused_with_both_values(
    change: Callable[[Identity], Identity], field: str
) -> None:
    """The field that differs is named with what was asked and what is loaded; other sessions go on."""
    async with Supervisor(spec(), settings=SETTINGS) as worker:
        session = await worker.open_session()
        await session.forward(tokens=[2], output="none")
        with pytest.raises(RequestError) as caught:
            await worker.open_session(identity=change(worker.identity))
        assert caught.value.code == "identity"
        assert caught.value.fields.keys() == {f"{field}.expected", f"{field}.actual"}
        assert (await session.forward(tokens=[3], output="none")).length == 2


async def test_threads_left_to_the_engine_or_not() -> None:
    """A recipe without a number of threads takes what the engine chose; one with a number gets it."""
    async with Supervisor(spec(recipe=Recipe(n_threads=0)), settings=SETTINGS) as worker:
        assert worker.identity.recipe.n_threads >= 1
    async with Supervisor(spec(recipe=Recipe(n_threads=3)), settings=SETTINGS) as worker:
        assert worker.identity.recipe.n_threads == 3


async def test_several_supervisors_share_one_loop() -> None:
    """Supervisors in one event loop start, serve and stop independently."""
    pids = set()

    async def run(index: int) -> None:
        async with Supervisor(spec((0, index + 1)), settings=SETTINGS) as worker:
            pids.add(worker.pid)
            assert worker.identity.end == index + 1
            for _ in range(20):
                await worker.ping()

    async with anyio.create_task_group() as tasks:
        for index in range(4):
            tasks.start_soon(run, index)
    assert len(pids) == 4


async def test_supervisor_leaves_nothing_after_many_lives() -> None:
    """Starting and stopping again and again leaves no process and no descriptor."""
    with Baseline():
        for _ in range(10):
            async with Supervisor(spec(), settings=SETTINGS) as worker:
                await worker.ping()


def test_supervisor_works_on_uvloop() -> None:
    """An embedding program may use another event loop."""
    supervisor = Supervisor(spec(), settings=SETTINGS)

    async def run() -> None:
        async with supervisor as worker:
            text = bytes(range(1, 256)) * 10_000
            assert len(await worker.tokenize(text, add_special=False)) == len(text)
            async with await worker.open_session() as session:
                assert (await session.forward(tokens=[2, 3], output="token")).length == 2

    anyio.run(run, backend_options=UVLOOP)
    assert supervisor.exit is not None
    assert supervisor.exit.stop_rung is StopRung.REQUEST


async def test_inspect_and_slice_need_a_worker_for_one_answer(tmp_path: Path) -> None:
    """An artifact is parsed in a worker of its own, which is gone afterwards."""
    seen: list[Progress] = []
    before = Footprint.now().children
    found = await inspect(spec().model, engine="fake", settings=SETTINGS, on_progress=seen.append)
    assert (found.n_layer, len(found.layer_bytes), found.supported, found.slice) == (12, 12, True, None)
    output = tmp_path / "part.slice"
    result = await slice_artifact(spec().model, (3, 7), output, engine="fake", settings=SETTINGS)
    assert result.bytes == output.stat().st_size
    part = await inspect(output, engine="fake", settings=SETTINGS)
    assert (part.slice, part.artifact) == ((3, 7), found.artifact)
    with pytest.raises(RequestError) as caught:
        await slice_artifact(spec().model, (3, 70), tmp_path / "no.slice", engine="fake", settings=SETTINGS)
    assert caught.value.code == "range"
    assert Footprint.now().children == before


@pytest.mark.parametrize(
    ("changes", "settings", "error"),
    [
        ({"layers": (0, 2**70)}, {}, LoadRejected),
        ({"max_sessions": 2**65}, {}, LoadRejected),
        ({}, {"environment": {"A": "nul\0"}}, SpawnFailed),
        ({}, {"executable": "/nowhere/gguf-shard-worker"}, ExecutableNotFound),
    ],
    ids=["layers", "sessions", "environment", "executable"],
)
async def test_start_that_cannot_be_is_one_plain_error(
    changes: dict[str, object], settings: dict[str, object], error: type[StartupError]
) -> None:
    """Whatever is wrong with the arguments is one typed error, the supervisor can still be shown, and no
    descriptor is left."""
    supervisor = Supervisor(replace(spec(), **changes), settings=replace(SETTINGS, **settings))  # type: ignore[arg-type]
    with Baseline(), pytest.raises(error):
        await supervisor.__aenter__()
    assert "failed" in repr(supervisor)


async def test_no_lines_of_stderr_can_be_kept() -> None:
    """Keeping none is a choice, not a crash."""
    plan = spec(fault_plan="stderr-flood@1")
    async with Supervisor(plan, settings=replace(SETTINGS, stderr_lines=0)) as worker:
        session = await worker.open_session()
        await session.forward(tokens=[2], output="none")
        assert worker.stderr_tail == ()


async def test_request_after_a_hard_stop_says_stopped() -> None:
    """A worker that had to be killed to be stopped was stopped, it did not die."""
    supervisor = Supervisor(spec(fault_plan="hang-hard@1"), settings=replace(SETTINGS, stop=IMPATIENT))
    async with supervisor as worker:
        session = await worker.open_session()
        with anyio.move_on_after(0.1):
            await session.forward(tokens=[2], output="none")
    with pytest.raises(WorkerStopped):
        await worker.ping()


async def test_inspection_interrupted_while_it_cleans_up_leaves_nothing(tmp_path: Path) -> None:
    """A second native cancel, in the middle of the stop ladder, ends the worker at once; the caller's task is
    cancelled and nothing else."""
    stop = replace(IMPATIENT, request_s=60.0)
    program = executable(tmp_path, "ignores_shutdown")
    settings = replace(SETTINGS, executable=str(program), stop=stop)
    with Baseline():
        task = asyncio.create_task(inspect("fake:", engine="fake", settings=settings))
        with anyio.fail_after(20):
            while not Footprint.now().children:  # noqa: ASYNC110 - bounded; nobody tells of a spawn
                await anyio.sleep(0.01)
            while not task.done():  # each cancel meets another await of the clean-up
                task.cancel()
                await anyio.sleep(0.05)
        assert task.cancelled()
