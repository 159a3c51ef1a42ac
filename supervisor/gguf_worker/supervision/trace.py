"""One log record for each request that was resolved, with what names it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from gguf_worker.errors import GgufWorkerError
from gguf_worker.protocol.messages import NO_DRAW, Answer, Request

logger = logging.getLogger("gguf_worker.requests")
"""Requests that were answered at level DEBUG, those that failed at INFO. Records have
`Outcome.fields` as attributes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one request ended."""

    worker_pid: int
    request_id: int
    request: Request
    ids: Mapping[str, object]
    """What was bound where it was made (`gguf_worker.logs.bound`): the id of the work that it belongs to, and
    others. They are told in the log and nowhere else."""
    duration_s: float
    outcome: Answer | GgufWorkerError

    def fields(self) -> dict[str, object]:
        """The record's attributes: `event` (request), `worker_pid`, `worker_request` (the request's number on
        the pipe), `request_type`, `outcome` (`ok` or the error's code), `duration_ms`, where there is one
        `session`, and the ids."""
        failed = isinstance(self.outcome, GgufWorkerError)
        fields: dict[str, object] = {
            **self.ids,
            "event": "request",
            "worker_pid": self.worker_pid,
            "worker_request": self.request_id,
            "request_type": self.request.type,
            "outcome": self.outcome.code if isinstance(self.outcome, GgufWorkerError) else "ok",
            "duration_ms": self.duration_s * 1e3,
        }
        session = getattr(self.request if failed else self.outcome, "session", None)
        if session is not None:
            fields["session"] = session
        return fields


def trace(outcome: Outcome) -> None:
    """Logs it. Ask `is_traced` first, so that a request costs nothing where nobody listens."""
    fields = outcome.fields()
    what = f"{outcome.request.type} {outcome.request_id} of worker {outcome.worker_pid}"
    text = f"{what}: {fields['outcome']} after {fields['duration_ms']:.1f} ms"
    logger.log(_level(outcome.outcome), text, extra=fields)


def is_traced(outcome: Answer | GgufWorkerError) -> bool:
    """Whether anybody listens to records of such outcomes."""
    return logger.isEnabledFor(_level(outcome))


def _level(outcome: Answer | GgufWorkerError) -> int:
    is_failure = not isinstance(outcome, Answer) and outcome.code != NO_DRAW
    return logging.INFO if is_failure else logging.DEBUG
