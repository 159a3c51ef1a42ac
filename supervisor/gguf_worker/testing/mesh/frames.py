"""A client that breaks good manners: it asks for much, and never reads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from gguf_worker.node import versions
from gguf_worker.node.identity import asked
from gguf_worker.node.mesh import Mesh
from gguf_worker.node.tracker.formation import Wanted
from gguf_worker.node.tracker.groups import StagePlan
from gguf_worker.node.transport import Transport
from gguf_worker.work import new_id
from gguf_worker_v1 import stage_pb2

ROWS = 64
"""In a forward; every answer has the logits of each."""
BEFORE_TRIM = 32
"""Forwards; then the session begins anew."""
MOST_FORWARDS = 8192
"""Half a gigabyte of answers: no buffer holds that by right."""
HELD_UP_S = 2.0
"""A client that cannot send for so long is held up."""


@dataclass(slots=True)
class Unread:
    """What became of it."""

    sent: int = 0
    """Frames."""
    is_held_up: bool = False


@asynccontextmanager
async def unread_session(mesh: Mesh) -> AsyncIterator[Unread]:
    """A session of the last stage whose answers nobody reads, held up inside."""
    plan = (await mesh.plan(Wanted())).stages[-1]
    transport = await mesh.paths.connect(plan.node, plan.endpoints)
    unread = Unread()
    try:
        await _send_until_held_up(transport, plan, unread)
        yield unread
    finally:
        await transport.aclose()


async def _send_until_held_up(transport: Transport, plan: StagePlan, unread: Unread) -> None:
    for frame in _frames(transport, plan):
        with anyio.move_on_after(HELD_UP_S) as waiting:
            await transport.send(frame.SerializeToString())
        if waiting.cancelled_caught:
            unread.is_held_up = True
            return
        unread.sent += 1


def _frames(transport: Transport, plan: StagePlan) -> Iterator[stage_pb2.StageFrame]:
    hello = stage_pb2.Hello(version=versions.version(), max_frame_bytes=transport.max_frame_bytes)
    yield stage_pb2.StageFrame(hello=hello)
    opening = stage_pb2.Open(identity=asked(plan.stage.identity), work_id=new_id(), request_id=new_id())
    yield stage_pb2.StageFrame(request=1, open=opening)
    hidden = bytes(ROWS * plan.stage.capacity.row_bytes)
    request = 2
    for number in range(MOST_FORWARDS):
        position = number % BEFORE_TRIM * ROWS
        if not position and number:
            yield stage_pb2.StageFrame(request=request, trim=stage_pb2.Trim(position=0))
            request += 1
        forward = stage_pb2.Forward(position=position, hidden=hidden, output=stage_pb2.OUTPUT_LOGITS_ALL)
        yield stage_pb2.StageFrame(request=request, forward=forward)
        request += 1
