"""Calls and their requests: what is lost and what is told twice is seen."""

from __future__ import annotations

import pytest

from fakes import SETTINGS, spec
from gguf_worker import Supervisor
from gguf_worker.supervision.trace import logger as request_log
from gguf_worker.testing import Calls

pytestmark = pytest.mark.anyio


async def test_calls_are_told_their_outcome_once() -> None:
    """An answer and a refusal each count; the level of the log is put back."""
    level = request_log.level
    with Calls() as calls:
        async with Supervisor(spec(), settings=SETTINGS) as worker:
            answered = await calls.make("ping", worker.ping)
            refused = await calls.make("close", lambda: worker.close_session(session=99))
        assert answered.value > 0
        assert refused.error is not None
        assert refused.error.code == "no_session"
        assert (calls.problems(), calls.waiting, calls.twice) == ([], [], 0)
    assert request_log.level == level
    assert not request_log.handlers


async def test_call_after_the_end_is_refused_without_a_request() -> None:
    """Nothing was sent, so nothing is missing in the log."""
    async with Supervisor(spec(), settings=SETTINGS) as worker:
        pass
    with Calls() as calls:
        call = await calls.make("ping", worker.ping)
        assert call.error is not None
        assert calls.problems() == []


def test_what_is_lost_or_twice_is_a_problem() -> None:
    """A call that nobody told, one whose request has two records, and one that was answered without any."""
    with Calls() as calls:
        calls.new("lost")
        twice, unseen = calls.new("twice"), calls.new("unseen")
        for _ in range(2):
            request_log.info("resolved", extra={"work_id": twice.id})
        twice.tell(1)
        unseen.tell(1)
        assert calls.problems() == [
            "lost was never told its outcome",
            "the request of unseen was answered without a resolution",
            "the request of twice was resolved 2 times",
        ]
        assert calls.twice == 1
        with pytest.raises(AssertionError, match="told twice"):
            twice.tell(2)
