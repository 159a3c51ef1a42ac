"""One log record for each request, with everything that names it."""

from __future__ import annotations

import logging

import pytest

from fakes import SETTINGS, spec
from gguf_worker import Supervisor
from gguf_worker.errors import RequestError
from gguf_worker.logs import bound
from gguf_worker.supervision.trace import logger

pytestmark = pytest.mark.anyio


async def test_record_has_request_session_work_and_process(caplog: pytest.LogCaptureFixture) -> None:
    """A program that reads the log can follow one work through every request."""
    caplog.set_level(logging.DEBUG, logger.name)
    async with Supervisor(spec(), settings=SETTINGS) as worker:
        with bound(work_id="work-7"):
            session = await worker.open_session()
            await session.forward(tokens=[2, 3], output="none")
            with pytest.raises(RequestError):
                await worker.forward(session=session.id, position=9, tokens=[4], output="none")
        await worker.ping()
    records = [vars(record) for record in caplog.records if record.name == logger.name]
    told = [
        (r["request_type"], r["outcome"], r.get("session"), r.get("work_id"), r["levelno"]) for r in records
    ]
    assert told == [
        ("load", "ok", None, None, logging.DEBUG),
        ("open", "ok", session.id, "work-7", logging.DEBUG),
        ("forward", "ok", session.id, "work-7", logging.DEBUG),
        ("forward", "position", session.id, "work-7", logging.INFO),
        ("ping", "ok", None, None, logging.DEBUG),
    ]
    assert {record["worker_pid"] for record in records} == {worker.pid}
    assert all(record["duration_ms"] > 0 for record in records)
    assert len({record["worker_request"] for record in records}) == len(records)
