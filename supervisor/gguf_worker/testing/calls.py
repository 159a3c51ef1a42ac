"""Calls in flight: that each of them is told its outcome, and no request is resolved twice."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from gguf_worker.errors import GgufWorkerError
from gguf_worker.logs import bound
from gguf_worker.supervision.trace import logger as request_log


@dataclass(slots=True, eq=False)
class Call:
    """One call that makes one request, and how it came out."""

    name: str
    id: str
    """The work id of its request."""
    told_at: float | None = None
    """Of `time.perf_counter`; None while nobody has told."""
    value: Any = None
    error: GgufWorkerError | None = None

    @property
    def is_told(self) -> bool:
        return self.told_at is not None

    def tell(self, value: Any = None, error: GgufWorkerError | None = None) -> None:
        """Takes the outcome, which comes once."""
        assert not self.is_told, f"{self.name} was told twice"
        self.told_at, self.value, self.error = time.perf_counter(), value, error


class Calls(logging.Handler):
    """A context manager that makes calls and follows each of their requests in the log of requests, which has
    one record for each that was resolved."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.all: list[Call] = []
        self._resolved: Counter[str] = Counter()
        self._level_before = logging.NOTSET

    def __enter__(self) -> Self:
        self._level_before = request_log.level
        request_log.setLevel(logging.DEBUG)
        request_log.addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        request_log.removeHandler(self)
        request_log.setLevel(self._level_before)

    def emit(self, record: logging.LogRecord) -> None:
        """Counts a resolution."""
        work = getattr(record, "work_id", "")
        if work:
            self._resolved[work] += 1

    def new(self, name: str) -> Call:
        """A call that is about to be made by somebody else."""
        call = Call(name, uuid4().hex)
        self.all.append(call)
        return call

    async def make(self, name: str, request: Callable[[], Awaitable[object]]) -> Call:
        """Makes a call that makes one request, and returns when it came out, well or not."""
        call = self.new(name)
        try:
            with bound(work_id=call.id):
                value = await request()
        except GgufWorkerError as error:
            call.tell(error=error)
        else:
            call.tell(value)
        return call

    @property
    def waiting(self) -> list[Call]:
        """Calls whose outcome nobody has told yet."""
        return [call for call in self.all if not call.is_told]

    @property
    def twice(self) -> int:
        """Requests that were resolved more than once."""
        return sum(self._resolved[call.id] > 1 for call in self.all)

    def problems(self) -> list[str]:
        """What was lost and what was told twice; empty where all is as it should be. A call that failed
        without a record was refused before anything was sent."""
        lost = [f"{call.name} was never told its outcome" for call in self.waiting]
        unseen = [
            f"the request of {call.name} was answered without a resolution"
            for call in self.all
            if call.value is not None and not self._resolved[call.id]
        ]
        twice = [
            f"the request of {call.name} was resolved {self._resolved[call.id]} times"
            for call in self.all
            if self._resolved[call.id] > 1
        ]
        return lost + unseen + twice
