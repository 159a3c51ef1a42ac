"""Faults of the transport, made by the worker itself at a chosen frame: what the supervisor makes of each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import anyio
import pytest

from fakes import IMPATIENT, SETTINGS, spec
from gguf_worker import ExitCause, StopRung, Supervisor
from gguf_worker.errors import StartupError, WorkerDied

pytestmark = pytest.mark.anyio

STALL_S = 0.4
LIMIT = replace(
    SETTINGS, load_stall_timeout_s=STALL_S, compute_stall_timeout_s=STALL_S, end_of_stream_grace_s=0.2
)


@dataclass(frozen=True)
class Fault:
    word: str
    cause: ExitCause
    exit_code: int | None = None
    words: str = ""


FAULTS = [
    Fault("hold", ExitCause.HANG, words="no progress"),
    Fault("half-frame", ExitCause.HANG, words="no progress"),
    Fault("huge-length", ExitCause.PROTOCOL_ERROR, words="4294967295 bytes is over the limit"),
    Fault("garbage", ExitCause.PROTOCOL_ERROR, words="something else wrote"),
    Fault("exit:0", ExitCause.EXIT_CODE, exit_code=0),
    Fault("exit:3", ExitCause.EXIT_CODE, exit_code=3),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.word)
async def test_fault_in_place_of_a_result(fault: Fault) -> None:
    """The pending request fails once with the cause, and nothing of the worker is left."""
    supervisor = Supervisor(spec(fault_plan=f"{fault.word}@result"), settings=LIMIT)
    async with supervisor as worker:
        session = await worker.open_session()
        with anyio.fail_after(20), pytest.raises(WorkerDied) as caught:
            await session.forward(tokens=[2], output="none")
        assert (caught.value.exit.cause, caught.value.exit.exit_code) == (fault.cause, fault.exit_code)
        assert fault.words in caught.value.message
    assert supervisor.release is not None
    assert supervisor.release.complete


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.word)
@pytest.mark.parametrize("frame", ["hello", "loaded"])
async def test_fault_in_place_of_a_frame_of_the_start(fault: Fault, frame: str) -> None:
    """The start fails with the cause; a silent one with the deadline of its phase."""
    silent = fault.cause is ExitCause.HANG and frame == "hello"
    settings = replace(LIMIT, hello_timeout_s=STALL_S) if silent else LIMIT
    supervisor = Supervisor(spec(fault_plan=f"{fault.word}@{frame}"), settings=settings)
    with anyio.fail_after(20), pytest.raises(StartupError) as caught:
        await supervisor.__aenter__()
    assert caught.value.exit is not None
    assert caught.value.exit.cause is (ExitCause.STARTUP_TIMEOUT if silent else fault.cause)
    assert caught.value.exit.exit_code == fault.exit_code
    assert supervisor.release is not None
    assert supervisor.release.complete


@pytest.mark.parametrize(
    ("plan", "rung", "cause"),
    [
        ("hold@bye", StopRung.TERMINATE, ExitCause.SIGNAL_OURS),
        ("hold@bye,ignore-term", StopRung.KILL, ExitCause.SIGNAL_OURS),
        ("exit:3@bye", StopRung.REQUEST, ExitCause.EXIT_CODE),
        ("exit:0@bye", StopRung.REQUEST, ExitCause.CLEAN),
        ("grandchild", StopRung.REQUEST, ExitCause.CLEAN),
        ("grandchild-away", StopRung.REQUEST, ExitCause.CLEAN),
        ("grandchild,exit:4@bye", StopRung.REQUEST, ExitCause.EXIT_CODE),
    ],
)
async def test_fault_in_the_stop(plan: str, rung: StopRung, cause: ExitCause) -> None:
    """The ladder goes on exactly until the worker is gone; what it started goes with it, wherever it is."""
    stop = IMPATIENT if plan.startswith("hold") else SETTINGS.stop
    supervisor = Supervisor(spec(fault_plan=plan), settings=replace(LIMIT, stop=stop))
    with anyio.fail_after(30):
        async with supervisor:
            pass
    assert supervisor.exit is not None
    assert (supervisor.exit.stop_rung, supervisor.exit.cause) == (rung, cause)
    assert supervisor.release is not None
    assert supervisor.release.unreleased == ()


async def test_flood_of_stderr_at_a_frame_disturbs_nothing() -> None:
    """However much a worker writes there, its answer comes."""
    async with Supervisor(spec(fault_plan="stderr-flood@result"), settings=SETTINGS) as worker:
        session = await worker.open_session()
        assert (await session.forward(tokens=[2], output="none")).length == 1


@pytest.mark.parametrize(
    "word", ["hold@nothing", "exit@result", "exit:256@result", "ignore-term@hello", "hodl@bye"]
)
async def test_fault_that_does_not_exist_is_refused(word: str) -> None:
    """A misspelt plan makes no test pass by accident: the worker does not start with it."""
    supervisor = Supervisor(spec(fault_plan=word), settings=SETTINGS)
    with pytest.raises(StartupError, match=word):
        await supervisor.__aenter__()
    assert supervisor.exit is not None
    assert supervisor.exit.exit_code == 100
