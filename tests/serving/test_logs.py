"""Lines of the log, for people and for programs."""

from __future__ import annotations

import io
import json
import logging
import re
import threading

import anyio
import pytest

from gguf_worker.logs import JsonLines, LogWriter, TextLines, bound, bound_ids, log_event, logging_to

log = logging.getLogger("gguf_worker.test")


def test_json_line_has_every_field() -> None:
    """The documented ones, the ids that are bound, and the event's own; in ASCII."""
    stream = io.StringIO()
    with logging_to(stream, as_json=True), bound(request_id="r-1", work_id="w-2", session=3):
        log_event(log, logging.WARNING, "tested", "grüße\n\x1b[31m", identity="abc[0:4]", nothing=None)
        logging.getLogger("some.library").error("%d things", 3, extra={"kind": "others"})
        log_event(log, logging.DEBUG, "hidden", "not logged at this level")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert first == {
        "level": "warning",
        "event": "tested",
        "message": "grüße\n\x1b[31m",
        "logger": "gguf_worker.test",
        "request_id": "r-1",
        "work_id": "w-2",
        "session": 3,
        "identity": "abc[0:4]",
    }
    assert (second["event"], second["message"], second["kind"]) == ("log", "3 things", "others")
    assert stream.getvalue().isascii()


def test_text_line_is_one_line_that_steers_no_terminal() -> None:
    """Time, level, message and the bound ids."""
    stream = io.StringIO()
    with logging_to(stream, as_json=False), bound(request_id="r-1"):
        log_event(log, logging.INFO, "tested", "a\nb\x1b[31m", pid=7)
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d\.\d{3} INFO    a\\nb\\x1b\[31m  \[request_id=r-1\]\n", stream.getvalue()
    )


@pytest.mark.parametrize("as_json", [False, True])
def test_exception_keeps_its_traceback(as_json: bool) -> None:
    """Of a defect, everything is told."""
    stream = io.StringIO()
    with logging_to(stream, as_json=as_json):
        try:
            raise RuntimeError("by a test")
        except RuntimeError:
            log.exception("it failed")
    text = json.loads(stream.getvalue())["exception"] if as_json else stream.getvalue()
    assert "RuntimeError: by a test" in text
    assert "test_logs.py" in text


@pytest.mark.anyio
async def test_ids_belong_to_a_task_and_those_that_it_starts() -> None:
    """Two tasks at once do not see each other's."""
    seen: dict[str, object] = {}

    async def inner(name: str) -> None:
        await anyio.lowlevel.checkpoint()
        seen[name] = dict(bound_ids())

    async def outer(name: str) -> None:
        with bound(request_id=name):
            async with anyio.create_task_group() as tasks:
                with bound(session=len(name)):
                    tasks.start_soon(inner, name)
                await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outer, "a")
        tasks.start_soon(outer, "bb")
    assert seen == {"a": {"request_id": "a", "session": 1}, "bb": {"request_id": "bb", "session": 2}}
    assert dict(bound_ids()) == {}


def test_id_that_a_record_means_otherwise_is_refused() -> None:
    """It would break the records of others."""
    with pytest.raises(ValueError, match="something else by name"), bound(name="x"):
        pass


@pytest.mark.parametrize("formatter", [JsonLines(), TextLines()])
def test_reader_that_does_not_read_holds_up_nobody(formatter: logging.Formatter) -> None:
    """Lines that find no room are dropped and counted; what comes after them is written again."""
    may_write, is_writing = threading.Event(), threading.Event()
    lines: list[str] = []

    def write(line: str) -> None:
        is_writing.set()
        assert may_write.wait(20)
        lines.append(line)

    writer = LogWriter(write, kept=2)
    writer.setFormatter(formatter)
    own = logging.Logger("own")
    own.addHandler(writer)
    own.info("first")
    assert is_writing.wait(20)
    for number in range(7):
        own.info("number %d", number)
    may_write.set()
    writer.finish()
    assert [
        next(w for w in ("first", "5 log lines", "number 0", "number 1") if w in line) for line in lines
    ] == [
        "first",
        "5 log lines",
        "number 0",
        "number 1",
    ]


def test_reader_that_is_gone_is_no_failure() -> None:
    """There is nowhere left to say so."""

    def write(_: str) -> None:
        raise BrokenPipeError

    writer = LogWriter(write)
    own = logging.Logger("own")
    own.addHandler(writer)
    own.info("to nobody")
    writer.finish()
