"""How long a supervised shard may stay as it is. Pure.

Everything that a supervisor does has a deadline of its own, so one that stays in a passing state for longer
is not taken care of any more: its owner is stuck. That is what a watchdog is there to find; a worker that is
slow, that crashes or hangs is the supervisor's own business.
"""

from __future__ import annotations

import math

from gguf_worker.supervision.events import LoadProgress, ObservedEvent, RestartScheduled, StateChanged
from gguf_worker.supervision.lifecycle import WorkerState
from gguf_worker.supervision.settings import WorkerSettings

SLACK_S = 30.0
"""Beyond each deadline, for a machine that is busy."""


def allowance(event: ObservedEvent, settings: WorkerSettings) -> float | None:
    """Seconds from an event until the next one is overdue; infinity where nothing has to happen, None where
    the event changes nothing about that."""
    stop = settings.stop
    ladder_s = stop.request_s + stop.eof_s + stop.terminate_s + stop.kill_s
    match event:
        case StateChanged(state=WorkerState.STARTING):
            return settings.hello_timeout_s + ladder_s + SLACK_S
        case StateChanged(state=WorkerState.LOADING) | LoadProgress():
            return 2 * settings.load_stall_timeout_s + ladder_s + SLACK_S
        case StateChanged(state=WorkerState.BACKOFF):
            return ladder_s + SLACK_S
        case RestartScheduled(delay_s=delay_s):
            return delay_s + SLACK_S
        case StateChanged():
            return math.inf
        case _:
            return None
