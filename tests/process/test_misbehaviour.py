"""A table of misbehaving workers: what the supervisor makes of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gguf_worker import (
    ExitCause,
    RestartPolicy,
    ShardSpec,
    StopDeadlines,
    StopRung,
    Supervisor,
    WorkerSettings,
)
from gguf_worker.errors import (
    GgufWorkerError,
    IdentityMismatch,
    PinMismatch,
    RequestTimeout,
    StartupError,
    VersionMismatch,
    WorkerDied,
)
from misbehaving import executable

pytestmark = pytest.mark.anyio

SPEC = ShardSpec("none", layers=(0, 12))


def settings_for(
    folder: Path,
    behaviour: str,
    *,
    hello_timeout_s: float = 20.0,
    stop_s: float = 20.0,
    stall_s: float = 20.0,
) -> WorkerSettings:
    """Short deadlines only where the test is about them, so that a slow machine fails nothing."""
    return WorkerSettings(
        executable=executable(folder, behaviour),
        hello_timeout_s=hello_timeout_s,
        load_stall_timeout_s=stall_s,
        end_of_stream_grace_s=0.2,
        restart=RestartPolicy.never(),
        stop=StopDeadlines(request_s=stop_s, eof_s=stop_s, terminate_s=stop_s),
    )


@dataclass(frozen=True)
class Start:
    behaviour: str
    cause: ExitCause
    error: type[GgufWorkerError] = StartupError
    exit_code: int | None = None
    signal: int | None = None
    words: str = ""
    timeout_s: float = 20.0


STARTS = [
    Start("silent_start", ExitCause.STARTUP_TIMEOUT, signal=9, words="no hello within 0.3 s", timeout_s=0.3),
    Start("exits_at_once", ExitCause.EXIT_CODE, exit_code=5, words="cannot go on"),
    Start("half_frame_then_exit", ExitCause.EXIT_CODE, exit_code=3, words="20 bytes into a frame"),
    Start("half_frame_then_silence", ExitCause.PROTOCOL_ERROR, signal=9, words="lived on"),
    Start("huge_length", ExitCause.PROTOCOL_ERROR, signal=9, words="4294967295 bytes is over the limit"),
    Start("garbage", ExitCause.PROTOCOL_ERROR, signal=9, words="something else wrote"),
    Start("other_versions", ExitCause.PROTOCOL_ERROR, VersionMismatch, signal=9, words="7 to 9"),
    Start("hello_twice", ExitCause.PROTOCOL_ERROR, signal=9, words="second hello"),
    Start("refuses", ExitCause.IDENTITY_MISMATCH, PinMismatch, exit_code=78, words="bbb, not aaa"),
    Start("other_pin", ExitCause.IDENTITY_MISMATCH, PinMismatch, exit_code=0, words="0.0.1"),
    Start("attests_another_recipe", ExitCause.IDENTITY_MISMATCH, IdentityMismatch, exit_code=0, words="8192"),
    Start("attests_fewer_layers", ExitCause.IDENTITY_MISMATCH, IdentityMismatch, exit_code=0, words="11"),
]


@pytest.mark.parametrize("case", STARTS, ids=lambda case: case.behaviour)
async def test_start_of_a_misbehaving_worker(
    case: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that does not start well is refused with a typed error and nothing of it is left."""
    monkeypatch.setattr("gguf_worker.supervision.life.installed_library_version", lambda: "0.3.36")
    settings = settings_for(tmp_path, case.behaviour, hello_timeout_s=case.timeout_s)
    supervisor = Supervisor(SPEC, settings=settings)
    with pytest.raises(StartupError) as caught:
        async with supervisor:
            pytest.fail("the worker must not become ready")
    assert type(caught.value) is case.error
    assert case.words in caught.value.message
    report = caught.value.exit
    assert report is not None
    assert (report.cause, report.exit_code, report.signal) == (case.cause, case.exit_code, case.signal)
    assert supervisor.release is not None
    assert supervisor.release.complete
    assert supervisor.state == "failed"


async def test_identity_mismatch_names_each_field_and_both_values(tmp_path: Path) -> None:
    """What was attested is compared field by field with what was asked."""
    settings = settings_for(tmp_path, "attests_another_recipe")
    with pytest.raises(IdentityMismatch) as caught:
        async with Supervisor(SPEC, settings=settings):
            pytest.fail("the worker must not become ready")
    assert caught.value.fields == {
        "recipe.n_ctx.expected": "4096",
        "recipe.n_ctx.actual": "8192",
        "recipe.type_k.expected": "f16",
        "recipe.type_k.actual": "q8_0",
    }


@pytest.mark.parametrize(
    ("behaviour", "rung", "cause"),
    [
        ("good", StopRung.REQUEST, ExitCause.CLEAN),
        ("ignores_shutdown", StopRung.EOF, ExitCause.CLEAN),
        ("ignores_shutdown_and_end_of_file", StopRung.TERMINATE, ExitCause.SIGNAL_OURS),
        ("ignores_all_but_kill", StopRung.KILL, ExitCause.SIGNAL_OURS),
        ("stops_but_its_grandchild_holds_the_pipes", StopRung.REQUEST, ExitCause.CLEAN),
    ],
)
async def test_stop_records_the_rung_that_worked(
    behaviour: str, rung: StopRung, cause: ExitCause, tmp_path: Path
) -> None:
    """The ladder goes on exactly until the worker is gone, and everything is released on each rung."""
    stop_s = 20.0 if rung is StopRung.REQUEST else 0.3
    supervisor = Supervisor(SPEC, settings=settings_for(tmp_path, behaviour, stop_s=stop_s))
    async with supervisor:
        pass
    assert supervisor.exit is not None
    assert supervisor.release is not None
    assert (supervisor.exit.stop_rung, supervisor.exit.cause) == (rung, cause)
    assert supervisor.release.stop_rung is rung
    assert supervisor.release.unreleased == ()
    assert supervisor.state == "stopped"


async def test_stop_of_a_stopped_process_ends_it(tmp_path: Path) -> None:
    """A process that SIGSTOP holds is continued so that it can take the SIGTERM."""
    settings = replace(settings_for(tmp_path, "stops_itself", stop_s=0.3), control_timeout_s=0.3)
    supervisor = Supervisor(SPEC, settings=settings)
    async with supervisor as worker:
        with pytest.raises(RequestTimeout):
            await worker.ping()
    assert supervisor.exit is not None
    assert supervisor.exit.stop_rung is StopRung.TERMINATE


@dataclass(frozen=True)
class Death:
    behaviour: str
    cause: ExitCause
    exit_code: int | None = None
    signal: int | None = None
    words: str = ""


DEATHS = [
    Death("answers_another_question", ExitCause.PROTOCOL_ERROR, signal=9, words="expected 'health'"),
    Death("answers_without_a_key", ExitCause.PROTOCOL_ERROR, signal=9, words="'kv_cells_freed' is missing"),
    Death("exits_0_in_mid_request", ExitCause.EXIT_CODE, exit_code=0),
    Death("exits_3_in_mid_answer", ExitCause.EXIT_CODE, exit_code=3, words="11 bytes into a frame"),
    Death("floods_stderr_then_crashes", ExitCause.SIGNAL_OTHER, signal=11, words="last words"),
    Death("dies_but_its_grandchild_holds_the_pipes", ExitCause.EXIT_CODE, exit_code=4),
]


@pytest.mark.parametrize("case", DEATHS, ids=lambda case: case.behaviour)
async def test_death_fails_a_pending_request_with_its_cause(case: Death, tmp_path: Path) -> None:
    """A request that is pending when the worker dies, or breaks the protocol, fails once and says why."""
    supervisor = Supervisor(SPEC, settings=settings_for(tmp_path, case.behaviour))
    async with supervisor as worker:
        with pytest.raises(WorkerDied) as caught:
            await worker.health()
        report = caught.value.exit
        assert (report.cause, report.exit_code, report.signal) == (case.cause, case.exit_code, case.signal)
        assert case.words in caught.value.message
        assert len(report.stderr_tail) <= supervisor.settings.stderr_lines
        with pytest.raises(WorkerDied):
            await worker.ping()
        assert supervisor.state == "failed"
    assert supervisor.release is not None
    assert supervisor.release.unreleased == ()


async def test_death_after_an_answer_delivers_the_answer_first(tmp_path: Path) -> None:
    """What a worker wrote before it died is read before its death is told."""
    async with Supervisor(SPEC, settings=settings_for(tmp_path, "answers_then_dies")) as worker:
        assert await worker.ping() > 0
        report = await worker.wait_for_end()
    assert (report.cause, report.signal) == (ExitCause.SIGNAL_OTHER, 9)


async def test_second_answer_ends_the_worker_after_the_first_was_given(tmp_path: Path) -> None:
    """A request is resolved once, by its first answer; the second one breaks the protocol."""
    async with Supervisor(SPEC, settings=settings_for(tmp_path, "answers_twice")) as worker:
        assert await worker.ping() > 0
        report = await worker.wait_for_end()
    assert report.cause is ExitCause.PROTOCOL_ERROR
    assert "not waiting for an answer" in report.detail


async def test_worker_that_closes_stdin_is_ended(tmp_path: Path) -> None:
    """A worker that can no longer be asked anything is killed after a moment's grace."""
    async with Supervisor(SPEC, settings=settings_for(tmp_path, "closes_stdin")) as worker:
        with pytest.raises(WorkerDied) as caught:
            await worker.ping()
    assert caught.value.exit.cause is ExitCause.PROTOCOL_ERROR
    assert "closed its stdin" in caught.value.message


async def test_load_without_progress_is_a_hang(tmp_path: Path) -> None:
    """A load that reports nothing new for the stall deadline is killed, and the phase is named."""
    settings = settings_for(tmp_path, "loads_without_progress", stall_s=0.3)
    with pytest.raises(StartupError) as caught:
        async with Supervisor(SPEC, settings=settings):
            pytest.fail("the worker must not become ready")
    assert caught.value.code == "hang"
    assert "no progress in load for 0.3 s" in caught.value.message


async def test_load_that_is_slow_but_moves_is_no_hang(tmp_path: Path) -> None:
    """A load may take longer than the stall deadline as long as it makes progress."""
    settings = settings_for(tmp_path, "loads_slowly", stall_s=0.5)
    async with Supervisor(SPEC, settings=settings) as worker:
        assert worker.load_s > 0.5
