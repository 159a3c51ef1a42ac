"""What happens to a supervised shard, as lines of the log. docs/operations.md lists events and fields."""

from __future__ import annotations

import logging

from gguf_worker._units import size
from gguf_worker.logs import log_event
from gguf_worker.process.exit import ExitCause, ExitReport, signal_name
from gguf_worker.supervision.events import (
    EventsDropped,
    GaveUp,
    LoadProgress,
    ObservedEvent,
    RestartScheduled,
    StateChanged,
    StderrLine,
    WorkerEnded,
    WorkerReady,
    WorkerReleased,
)

log = logging.getLogger("gguf_worker.supervision")

ASKED_FOR = (ExitCause.CLEAN, ExitCause.SIGNAL_OURS)


class Journal:
    """Logs the events of one shard; `layers` is how its lines name it."""

    def __init__(self, layers: str) -> None:
        self._layers = layers
        self._phase = ""

    def take(self, event: ObservedEvent) -> None:
        """Logs one event; of a load's progress only the begin of each phase."""
        match event:
            case StateChanged():
                text = f"{event.before.value}, now {event.state.value}"
                self._log(logging.DEBUG, "worker_state", text, event, state=event.state.value)
            case LoadProgress():
                self._take_progress(event)
            case WorkerReady(identity=identity, load_s=load_s):
                text = f"ready in process {event.stamp.pid} after {load_s:.1f} s"
                fields = {"identity": str(identity), "load_s": round(load_s, 3)}
                self._log(logging.INFO, "worker_ready", text, event, **fields)
            case WorkerEnded(exit=report):
                level = logging.INFO if report.cause in ASKED_FOR else logging.ERROR
                self._log(level, "worker_ended", report.describe(), event, **exit_fields(report))
            case WorkerReleased(release=release):
                level = logging.INFO if release.complete else logging.ERROR
                text = f"left behind: {'; '.join(release.unreleased) or 'nothing'}"
                fields = {"stop_rung": release.stop_rung.value, "unreleased": list(release.unreleased)}
                self._log(level, "worker_released", text, event, **fields)
            case RestartScheduled(delay_s=delay_s, number=number):
                text = f"restart {number} in {delay_s:.1f} s"
                fields = {"delay_s": round(delay_s, 3), "number": number, "reason": event.reason}
                self._log(logging.WARNING, "restart_scheduled", text, event, **fields)
            case GaveUp(reason=reason, causes=causes):
                self._log(logging.ERROR, "gave_up", reason, event, causes=list(causes))
            case StderrLine(text=text):
                self._log(
                    logging.INFO, "worker_stderr", f"process {event.stamp.pid} says: {text}", event, line=text
                )
            case EventsDropped(count=count):
                text = f"{self._layers}: {count} events came too fast to be logged"
                log_event(log, logging.WARNING, "events_dropped", text, layers=self._layers, count=count)

    def _take_progress(self, event: LoadProgress) -> None:
        if event.phase != self._phase:
            self._phase = event.phase
            amount = "" if event.phase == "warm-up" else f" {size(event.total)}"  # which is of graph nodes
            fields = {"phase": event.phase, "total": event.total}
            self._log(logging.INFO, "load_progress", f"{event.phase}{amount}", event, **fields)

    def _log(
        self,
        level: int,
        name: str,
        text: str,
        event: StateChanged
        | LoadProgress
        | WorkerReady
        | WorkerEnded
        | WorkerReleased
        | RestartScheduled
        | GaveUp
        | StderrLine,
        **fields: object,
    ) -> None:
        stamp = event.stamp
        ids = {"layers": self._layers, "worker_pid": stamp.pid, "generation": stamp.generation}
        log_event(log, level, name, f"layers {self._layers}: {text}", **ids, **fields)


def exit_fields(report: ExitReport) -> dict[str, object]:
    """How a process ended, for programs."""
    return {
        "cause": report.cause.value,
        "exit_code": report.exit_code,
        "signal": None if report.signal is None else signal_name(report.signal),
        "detail": report.detail or None,
        "stop_rung": report.stop_rung.value,
        "uptime_s": round(report.uptime_s, 3),
    }
