"""The kill matrix: every way in which a worker can fail, in every phase of its life.

    for result in await run_matrix():
        print(result)

Each cell checks the exit cause and status, that every call in flight was told once, what was released, and
that this process holds what it held before. `rehearse` of `gguf_worker.testing.phases` runs scenarios of your
own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from gguf_worker.process.exit import ExitCause
from gguf_worker.process.stop import StopDeadlines
from gguf_worker.supervision.policy import RestartPolicy
from gguf_worker.supervision.settings import WorkerSettings
from gguf_worker.testing import faults
from gguf_worker.testing.cell import Cell, CellResult, Ends, Failure, LivesOn, NoCell, run_cell
from gguf_worker.testing.faults import FOREVER_MS, Fault, Frame
from gguf_worker.testing.memory import (
    CAN_LIMIT_OTHERS,
    greedy_neighbour,
    limit_address_space,
    memory_group,
    why_no_memory_group,
)
from gguf_worker.testing.phases import Phase, Rig, Scenario

GROUP_BYTES = 64 << 20
"""Of the memory group in which a worker is killed for want of memory."""

CALM = WorkerSettings(
    hello_timeout_s=30.0,
    load_stall_timeout_s=30.0,
    compute_stall_timeout_s=30.0,
    control_timeout_s=30.0,
    end_of_stream_grace_s=30.0,
    stop=StopDeadlines(request_s=30.0, eof_s=5.0, terminate_s=5.0, kill_s=30.0),
    restart=RestartPolicy.never(),
)
"""Deadlines that only a broken supervisor would meet: what is found, is found without them."""
BY_HELLO_TIMEOUT = replace(CALM, hello_timeout_s=1.5)
BY_STALL = replace(CALM, load_stall_timeout_s=0.5, compute_stall_timeout_s=0.5)
BY_LADDER = replace(CALM, stop=StopDeadlines(request_s=0.3, eof_s=0.3, terminate_s=0.3, kill_s=30.0))


async def run_matrix(
    cells: Iterable[Cell] | None = None, *, on_result: Callable[[CellResult], None] = lambda _: None
) -> list[CellResult]:
    """Runs cells one after the other; all that can be here by default."""
    results = []
    for cell in cells_here() if cells is None else cells:
        results.append(await run_cell(cell))
        on_result(results[-1])
    return results


def cells_here() -> list[Cell]:
    """The cells that this machine can run."""
    return [cell for cell in kill_matrix().values() if isinstance(cell, Cell)]


# ---- the rows -----------------------------------------------------------------------------------

_Row = Callable[[Phase], Cell | NoCell]

_HELD: Mapping[Phase, tuple[Fault, ...]] = {
    Phase.SPAWN: (faults.hold(Frame.HELLO),),
    Phase.HELLO: (faults.hold(Frame.HELLO),),
    Phase.LOAD: (faults.load_slow(FOREVER_MS),),
    Phase.IDLE: (),
    Phase.COMPUTE: (faults.slow(FOREVER_MS),),
    Phase.SEND: (faults.half_frame(Frame.RESULT),),
    Phase.STOP: (faults.slow(FOREVER_MS), faults.hold(Frame.BYE)),
}
"""What keeps a worker in a phase until something is done to it."""


def kill_matrix() -> dict[tuple[Failure, Phase], Cell | NoCell]:
    """Every cell, or why there is none."""
    return {(failure, phase): _row(failure)(phase) for failure in Failure for phase in Phase}


def _row(failure: Failure) -> _Row:
    match failure:
        case Failure.SIGKILL | Failure.SIGSEGV | Failure.SIGABRT:
            return lambda phase: _signalled(failure, phase)
        case Failure.SIGSTOP:
            return _stopped
        case Failure.EXIT_0:
            return lambda phase: _leaves(failure, phase, 0)
        case Failure.EXIT_3:
            return lambda phase: _leaves(failure, phase, 3)
        case Failure.OUT_OF_MEMORY:
            return _out_of_memory
        case Failure.GARBAGE:
            return lambda phase: _bad_frame(
                failure, phase, faults.garbage, "printf 'Welcome to the worker!\\n'"
            )
        case Failure.HUGE_LENGTH:
            header = "printf 'GW\\001\\000\\377\\377\\377\\377'"
            return lambda phase: _bad_frame(failure, phase, faults.huge_length, header)
        case Failure.HALF_FRAME:
            return _half_frame
        case Failure.STDERR_FLOOD:
            return _stderr_flood
        case Failure.STDIN_EOF:
            return _stdin_eof
        case Failure.IGNORED_SIGTERM:
            return _ignored_term
        case Failure.GRANDCHILD:
            return _grandchild


def _send(number: int) -> Callable[[Rig], None]:
    return lambda rig: rig.signal(number)


def _signalled(failure: Failure, phase: Phase) -> Cell:
    """A signal from nobody knows where."""
    number = signal.Signals[failure.value]
    return Cell(
        failure=failure,
        scenario=Scenario(
            phase=phase,
            settings=CALM,
            faults=_HELD[phase],
            act=_send(number),
            awaits_line=phase is Phase.STOP,
        ),
        expected=Ends(causes=(ExitCause.SIGNAL_OTHER,), signal=number),
    )


def _stopped(phase: Phase) -> Cell:
    """It neither ends nor moves, so it is found by a deadline for a sign of life."""
    return Cell(
        failure=Failure.SIGSTOP,
        scenario=Scenario(
            phase=phase,
            settings=_settings_for_silence(phase),
            faults=_HELD[phase],
            act=_send(signal.SIGSTOP),
            asks=phase is Phase.IDLE,  # a worker that owes nothing is not missed
            awaits_line=phase is Phase.STOP,
        ),
        expected=_ends_of_silence(phase),
    )


def _settings_for_silence(phase: Phase) -> WorkerSettings:
    match phase:
        case Phase.SPAWN | Phase.HELLO:
            return BY_HELLO_TIMEOUT
        case Phase.STOP:
            return BY_LADDER
        case _:
            return BY_STALL


def _ends_of_silence(phase: Phase) -> Ends:
    match phase:
        case Phase.SPAWN | Phase.HELLO:
            return Ends(causes=(ExitCause.STARTUP_TIMEOUT,), signal=signal.SIGKILL)
        case Phase.STOP:
            return Ends(causes=(ExitCause.SIGNAL_OURS,), signal=signal.SIGTERM)
        case _:
            return Ends(causes=(ExitCause.HANG,), signal=signal.SIGKILL)


def _leaves(failure: Failure, phase: Phase, status: int) -> Cell:
    """The process ends by itself."""
    asked = phase is Phase.STOP and status == 0
    frames = {
        Phase.HELLO: Frame.HELLO,
        Phase.LOAD: Frame.PROGRESS,
        Phase.IDLE: Frame.PONG,
        Phase.SEND: Frame.RESULT,
        Phase.STOP: Frame.BYE,
    }
    by_itself: tuple[Fault, ...] = ()
    if phase is Phase.COMPUTE:
        by_itself = (faults.leave(status, step=1),)
    elif phase in frames:
        by_itself = (*_slow(phase), faults.leave_at(frames[phase], status))
    return Cell(
        failure=failure,
        scenario=Scenario(
            phase=phase,
            settings=CALM,
            faults=by_itself,
            preamble=f"exit {status}" if phase is Phase.SPAWN else "",
            asks=phase is Phase.IDLE,
        ),
        expected=Ends(causes=(ExitCause.CLEAN if asked else ExitCause.EXIT_CODE,), exit_code=status),
    )


def _slow(phase: Phase) -> tuple[Fault, ...]:
    """Keeps a worker busy where the phase is about one that is."""
    if phase is Phase.LOAD:
        return (faults.load_slow(FOREVER_MS),)
    return (faults.slow(FOREVER_MS),) if phase in (Phase.COMPUTE, Phase.STOP) else ()


def _out_of_memory(phase: Phase) -> Cell | NoCell:
    """In a memory group the kernel kills it, whatever it is doing: it takes too much itself, or a neighbour
    does. Without one only its own allocations can be refused."""
    lacking = why_no_memory_group()
    if not lacking:
        return _killed_for_memory(phase)
    if phase is not Phase.COMPUTE:
        return NoCell(f"a process that takes no memory can only be killed in a memory group: {lacking}")
    if not CAN_LIMIT_OTHERS:
        return NoCell(f"neither a memory group nor another process's limits can be set here: {lacking}")
    return Cell(
        failure=Failure.OUT_OF_MEMORY,
        scenario=Scenario(
            phase=phase,
            settings=CALM,
            faults=(faults.allocate(step=1),),
            prepare=lambda rig: limit_address_space(rig.pid, GROUP_BYTES),
            ends=False,
        ),
        expected=LivesOn(),
    )


def _killed_for_memory(phase: Phase) -> Cell:
    computes = phase is Phase.COMPUTE
    proven = os.access("/dev/kmsg", os.R_OK)
    return Cell(
        failure=Failure.OUT_OF_MEMORY,
        scenario=Scenario(
            phase=phase,
            settings=CALM,
            faults=(faults.allocate(step=1),) if computes else _HELD[phase],
            prepare=_confine if computes else None,
            act=None if computes else _starve,
            awaits_line=phase is Phase.STOP,
        ),
        expected=Ends(
            causes=(ExitCause.OUT_OF_MEMORY_PROVEN if proven else ExitCause.OUT_OF_MEMORY_PROBABLE,),
            signal=signal.SIGKILL,
        ),
    )


def _confine(rig: Rig) -> None:
    group = rig.cleanup.enter_context(memory_group(GROUP_BYTES))
    (group / "cgroup.procs").write_text(str(rig.pid))


def _starve(rig: Rig) -> None:
    group = rig.cleanup.enter_context(memory_group(GROUP_BYTES))
    rig.cleanup.enter_context(greedy_neighbour(group, rig.pid))


_ANSWERS: Mapping[Phase, Frame] = {
    Phase.HELLO: Frame.HELLO,
    Phase.LOAD: Frame.PROGRESS,
    Phase.IDLE: Frame.PONG,
    Phase.COMPUTE: Frame.PONG,
    Phase.SEND: Frame.RESULT,
    Phase.STOP: Frame.BYE,
}
"""The frame that a worker sends in a phase, in place of which it can send something else."""


def _instead(phase: Phase, fault: Callable[[Frame], Fault]) -> tuple[Fault, ...]:
    return () if phase is Phase.SPAWN else (*_slow(phase), fault(_ANSWERS[phase]))


def _bad_frame(failure: Failure, phase: Phase, fault: Callable[[Frame], Fault], at_spawn: str) -> Cell:
    """What no worker would write: the stream is lost, and the worker with it."""
    return Cell(
        failure=failure,
        scenario=Scenario(
            phase=phase,
            settings=CALM,
            faults=_instead(phase, fault),
            preamble=f"{at_spawn}; exec sleep 60" if phase is Phase.SPAWN else "",
            asks=phase in (Phase.IDLE, Phase.COMPUTE),
        ),
        expected=Ends(causes=(ExitCause.PROTOCOL_ERROR,), signal=signal.SIGKILL),
    )


def _half_frame(phase: Phase) -> Cell:
    """Its end never comes; to whoever waits for it that is silence."""
    return Cell(
        failure=Failure.HALF_FRAME,
        scenario=Scenario(
            phase=phase,
            settings=_settings_for_silence(phase),
            faults=_instead(phase, faults.half_frame),
            preamble="printf 'GW\\001\\000'; exec sleep 60" if phase is Phase.SPAWN else "",
            asks=phase in (Phase.IDLE, Phase.COMPUTE),
        ),
        expected=_ends_of_silence(phase),
    )


_FLOOD = f"yes '{'x' * 127}' | head -c 4194304 >&2"


def _stderr_flood(phase: Phase) -> Cell:
    """Somebody reads it, whatever else goes on."""
    by_itself: tuple[Fault, ...] = ()
    if phase is Phase.COMPUTE:
        by_itself = (faults.flood_stderr(step=1),)
    elif phase is not Phase.SPAWN:
        frame = Frame.LOADED if phase is Phase.LOAD else _ANSWERS[phase]
        busy = _slow(phase) if phase is Phase.STOP else ()
        by_itself = (*busy, faults.flood_stderr_at(frame))
    return Cell(
        failure=Failure.STDERR_FLOOD,
        scenario=Scenario(
            phase=phase,
            settings=CALM,
            faults=by_itself,
            preamble=_FLOOD if phase is Phase.SPAWN else "",
            asks=phase is Phase.IDLE,
            n_forwards=1,
            ends=False,
        ),
        expected=LivesOn(),
    )


def _stdin_eof(phase: Phase) -> Cell | NoCell:
    """The host's end of the pipe is closed, and nothing else happens: the worker must go by itself."""
    if phase is Phase.HELLO:
        return NoCell("a worker reads its input from its hello on; what came before waits there, as in spawn")
    ends = {
        Phase.LOAD: ExitCause.LOAD_REJECTED,  # it says that it cancels the load before it goes
        Phase.STOP: ExitCause.CLEAN,
    }
    return Cell(
        failure=Failure.STDIN_EOF,
        scenario=Scenario(
            phase=phase,
            settings=CALM,
            # In mid-send it has its answer and much to say before that; it says both, and goes.
            faults=(faults.flood_stderr_at(Frame.RESULT),) if phase is Phase.SEND else _slow(phase),
            act=Rig.close_input,
            n_forwards=1 if phase is Phase.SEND else 3,
        ),
        expected=Ends(causes=(ends.get(phase, ExitCause.EXIT_CODE),), exit_code=0),
    )


def _ignored_term(phase: Phase) -> Cell:
    """A SIGTERM that does nothing; only the stop ladder needs it, and goes on to SIGKILL."""
    if phase is Phase.STOP:
        return Cell(
            failure=Failure.IGNORED_SIGTERM,
            scenario=Scenario(phase=phase, settings=BY_LADDER, faults=(*_HELD[phase], faults.ignore_term())),
            expected=Ends(causes=(ExitCause.SIGNAL_OURS,), signal=signal.SIGKILL),
        )
    for_a_while: Mapping[Phase, tuple[Fault, ...]] = {
        Phase.HELLO: (faults.flood_stderr_at(Frame.HELLO),),
        Phase.LOAD: (faults.load_slow(300),),
        Phase.COMPUTE: (faults.slow(100),),
        Phase.SEND: (faults.flood_stderr_at(Frame.RESULT),),
    }
    at_spawn = phase is Phase.SPAWN
    return Cell(
        failure=Failure.IGNORED_SIGTERM,
        scenario=Scenario(
            phase=phase,
            settings=CALM,
            faults=() if at_spawn else (faults.ignore_term(), *for_a_while.get(phase, ())),
            preamble="trap '' TERM; echo ready >&2" if at_spawn else "",
            act=_send(signal.SIGTERM),
            awaits_line=at_spawn,
            n_forwards=1,
            ends=False,
        ),
        expected=LivesOn(),
    )


def _grandchild(phase: Phase) -> Cell:
    """The death is seen although the pipe stays open, and the grandchild goes too."""
    at_spawn = phase is Phase.SPAWN
    killed = _signalled(Failure.SIGKILL, phase)
    scenario = replace(
        killed.scenario,
        faults=_HELD[phase] if at_spawn else (faults.grandchild(), *_HELD[phase]),
        preamble="sleep 60 & echo ready >&2" if at_spawn else "",
        awaits_line=at_spawn or killed.scenario.awaits_line,
    )
    return replace(killed, failure=Failure.GRANDCHILD, scenario=scenario)
