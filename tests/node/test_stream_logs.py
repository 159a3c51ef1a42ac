"""One line for each session of a node, and the ids of its work in every line that is about it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from gguf_worker.errors import RequestError
from gguf_worker.logs import fields_of
from gguf_worker.protocol.messages import Output
from gguf_worker.work import Work
from node.raw import RawClient
from node.rigs import node

pytestmark = pytest.mark.anyio


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    return [fields_of(one) for one in caplog.records if getattr(one, "event", "") == event]


async def test_session_has_one_line_at_its_end(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    work = Work(account="alice")
    async with node(kind) as rig:
        session = await rig.stage(2).open_session(work=work)
        with pytest.raises(RequestError):
            await session.forward_piece(tokens=[], output=Output.TOKEN)
        await session.close("stop")
        await rig.ended()
    [line] = lines(caplog, "stage_session")
    assert (line["request_id"], line["work_id"]) == (work.request_id, work.work_id)
    assert (line["account"], line["reason"], line["rows"]) == ("alice", "stop", 0)
    assert line["layers"] == "{}:{}".format(*rig.stage(2).layers)


async def test_lines_of_the_worker_have_the_ids_of_the_work(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="gguf_worker.requests")
    work = Work()
    async with node("gguf") as rig:
        session = await rig.stage(0).open_session(work=work)
        await session.forward_piece(tokens=[1], output=Output.NONE)
        await session.trim(0)
        await session.close()
        await rig.ended()
    told = {line["request_type"]: line for line in lines(caplog, "request") if "work_id" in line}
    assert {"open", "forward", "trim", "close"} <= told.keys()
    assert all(line["work_id"] == work.work_id for line in told.values())
    assert all(line["request_id"] == work.request_id for line in told.values())


async def test_refusals_are_told(caplog: pytest.LogCaptureFixture) -> None:
    async with node("toy") as rig:
        await rig.stage(0).open_session(work=(work := Work()))
        bad = RawClient(await rig.dial())
        await bad.link.client.send(b"\xff")
        await bad.refusal()
        with pytest.raises(RequestError):
            await rig.stage(0).open_session(work=Work(request_id="two words"))
    codes = [line["code"] for line in lines(caplog, "stage_refused")]
    assert codes == ["bad_frame", "argument"]
    assert work.work_id not in str(lines(caplog, "stage_refused"))
