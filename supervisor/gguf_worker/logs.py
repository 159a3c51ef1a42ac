"""Structured logs: one line for each thing that happens, for people or as JSON, through standard logging.

A line has a time, a level, an `event` (a short name for programs), a `message` (for people) and fields. The
ids that are bound where it is written (`bound(request_id=..., work_id=..., session=..., identity=...)`) are
among the fields. docs/operations.md lists them all.

Lines are made where they are logged and written by a thread of their own, so that a terminal that is paused
or a pipe that nobody reads holds up nothing but the log.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TextIO

from gguf_worker._text import printable

LINES_KEPT = 8192
"""Lines that wait to be written; later ones are dropped, and counted."""

FLUSH_S = 2.0
"""How long the end of the log waits for what reads it."""

_PLAIN = {
    *vars(logging.makeLogRecord({})),
    *("message", "asctime", "event", "fields", "color_message"),
}
"""Attributes of a record that are not fields."""

_bound: ContextVar[Mapping[str, object]] = ContextVar("gguf_worker_log_ids", default=MappingProxyType({}))


bound_ids: Callable[[], Mapping[str, object]] = _bound.get
"""The ids that are bound here."""


class bound:
    """Adds ids to every line that is logged inside, by this task and those that it starts. A request to a
    worker takes them along, so that the line about its outcome has them too.

    A context manager, and a plain class because each request to a worker enters one.
    """

    __slots__ = ("_ids", "_token")

    def __init__(self, **ids: object) -> None:
        if not _PLAIN.isdisjoint(ids):
            taken = ", ".join(sorted(_PLAIN & ids.keys()))
            raise ValueError(f"a log line means something else by {taken}")
        self._ids = ids

    def __enter__(self) -> None:
        self._token = _bound.set({**_bound.get(), **self._ids})

    def __exit__(self, *_: object) -> None:
        _bound.reset(self._token)


def log_event(logger: logging.Logger, level: int, event: str, message: str, **fields: object) -> None:
    """Logs one thing that happened. Fields that are None are left out."""
    logger.log(level, "%s", message, extra={"event": event, "fields": fields})


# ---- how a line looks ---------------------------------------------------------------------------


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """The ids that are bound and the record's own fields, however they were given to it."""
    own: Mapping[str, object] = getattr(record, "fields", {})
    extra = {name: value for name, value in vars(record).items() if name not in _PLAIN}
    return {name: value for name, value in {**_bound.get(), **extra, **own}.items() if value is not None}


class JsonLines(logging.Formatter):
    """One JSON object in ASCII: any pipe carries it and no terminal acts upon it."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": utc(record.created),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", "log"),
            "message": record.getMessage(),
            "logger": record.name,
        }
        line |= {name: value for name, value in fields_of(record).items() if name not in line}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """Time of day, level, message and ids. What the message says is not repeated."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S.%f")[:-3]
        ids = " ".join(f"{name}={value}" for name, value in _bound.get().items() if value is not None)
        line = printable(f"{time} {record.levelname:7} {record.getMessage()}{ids and f'  [{ids}]'}")
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def utc(seconds: float) -> str:
    """RFC 3339 with milliseconds."""
    time = datetime.fromtimestamp(seconds, tz=UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# ---- where it goes ------------------------------------------------------------------------------


class LogWriter(logging.Handler):
    """Hands lines to a thread that writes them; never waits for it."""

    def __init__(self, write: Callable[[str], None], *, kept: int = LINES_KEPT) -> None:
        super().__init__()
        self.write = write
        """Writes one line; may be exchanged at any time."""
        self._lines: queue.Queue[str | None] = queue.Queue(maxsize=kept)
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="log writer", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def finish(self, timeout_s: float = FLUSH_S) -> None:
        """Writes what waits, and ends the thread; one that is held up for longer is left behind."""
        try:
            self._lines.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    def _run(self) -> None:
        for line in iter(self._lines.get, None):
            self._write(line)
            dropped, self._dropped = self._dropped, 0
            if dropped:
                self._write(self._say_dropped(dropped))

    def _write(self, line: str) -> None:
        try:
            self.write(line)
        except (OSError, ValueError):
            """Whoever read the log is gone, and there is nowhere else to say so."""

    def _say_dropped(self, count: int) -> str:
        record = logging.LogRecord(__name__, logging.WARNING, "", 0, f"{count} log lines dropped", None, None)
        record.event, record.fields = "log_dropped", {"count": count}
        return self.format(record)


@contextmanager
def logging_to(stream: TextIO, *, as_json: bool, level: int = logging.INFO) -> Iterator[LogWriter]:
    """Everything that this process logs goes to the stream while this is open."""

    def write(line: str) -> None:
        stream.write(line + "\n")
        stream.flush()

    writer = LogWriter(write)
    writer.setFormatter(JsonLines() if as_json else TextLines())
    root = logging.getLogger()
    before = root.level
    root.addHandler(writer)
    root.setLevel(level)
    try:
        yield writer
    finally:
        root.setLevel(before)
        root.removeHandler(writer)
        writer.finish()
