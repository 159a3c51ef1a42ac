"""How long a shard may stay as it is."""

from __future__ import annotations

import math

import pytest

from fakes import SETTINGS, spec
from gguf_worker import LoadProgress, RestartScheduled, StateChanged, StderrLine, WorkerState
from gguf_worker.serving.liveness import SLACK_S, allowance
from gguf_worker.serving.shard import Shard
from gguf_worker.supervision.events import Stamp

STAMP = Stamp(sequence=1, time=0.0, generation=1, pid=1)


def moved(state: WorkerState) -> StateChanged:
    return StateChanged(stamp=STAMP, before=WorkerState.STARTING, state=state)


@pytest.mark.parametrize("state", WorkerState)
def test_only_passing_states_must_pass(state: WorkerState) -> None:
    """Ready, failed, stopped: nothing has to happen. Any other has an end, no earlier than the supervisor's
    own deadlines."""
    allowed = allowance(moved(state), SETTINGS)
    assert allowed is not None
    if state in (WorkerState.STARTING, WorkerState.LOADING, WorkerState.BACKOFF):
        assert SLACK_S < allowed < math.inf
    else:
        assert allowed == math.inf


def test_waiting_for_a_restart_takes_as_long_as_was_announced() -> None:
    """However long that is."""
    event = RestartScheduled(stamp=STAMP, delay_s=300.0, number=1, reason="")
    assert allowance(event, SETTINGS) == 300.0 + SLACK_S


def test_progress_of_a_load_is_a_sign_of_life_and_a_line_of_stderr_is_none() -> None:
    """A load may take hours, as long as it goes on."""
    progress = LoadProgress(stamp=STAMP, phase="digest", done=1, total=2)
    assert allowance(progress, SETTINGS) == allowance(moved(WorkerState.LOADING), SETTINGS)
    assert allowance(StderrLine(stamp=STAMP, text="working"), SETTINGS) is None


def test_shard_is_live_until_something_is_overdue() -> None:
    """By the clock: then it is stuck, until it moves again."""
    now = 1000.0
    shard = Shard(spec(), SETTINGS, on_change=lambda: None, clock=lambda: now)
    shard._take(moved(WorkerState.LOADING))
    allowed = allowance(moved(WorkerState.LOADING), SETTINGS)
    assert allowed is not None
    now += allowed - 1
    assert shard.is_live
    now += 2
    assert not shard.is_live
    shard._take(moved(WorkerState.READY))
    now += 1e9
    assert shard.is_live
