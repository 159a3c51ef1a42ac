"""Whose request a session serves: the ids that go through every stage, log line, record and receipt."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field, replace
from typing import Self


def new_id() -> str:
    """A fresh id, 32 hexadecimal digits."""
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One request's execution on the stages of a route."""

    request_id: str = field(default_factory=new_id)
    """Of the request that a client made."""
    work_id: str = field(default_factory=new_id)
    """Of this execution of it; receipts are made of it. It stays the same when a stage is replayed, but for
    one that has written the receipt meanwhile."""
    account: str = ""
    """Who pays; empty where nobody does."""
    deadline: float | None = None
    """By `time.monotonic()`, until when somebody waits; None is for ever."""
    attempt: int = 0
    """How often the stage was opened for this work before."""
    traceparent: str = ""
    """W3C trace context of the caller; empty where there is none."""

    def again(self) -> Self:
        """The same work, opened once more."""
        return replace(self, attempt=self.attempt + 1)

    def anew(self) -> Self:
        """Another work of the same request: for a stage that has written the receipt of this one."""
        return replace(self, work_id=new_id())

    def remaining_s(self) -> float | None:
        """Seconds until the deadline, at least 0; None where there is none."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
