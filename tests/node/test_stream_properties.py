"""Any bytes and any calls: the service goes on, other streams too, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import anyio.lowlevel
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_worker.node.remote_session import RemoteSession
from gguf_worker.node.transport import TransportClosed
from gguf_worker.protocol.messages import Output
from gguf_worker_v1 import stage_pb2
from node.raw import HELLO, RawClient, tokens
from node.rigs import Rig, rig_of
from node.toy_backend import ToyBackend

IDENTITY = ToyBackend(0, 3).describe().identity
DEADLINE_S = 10.0

# ---- any bytes ----------------------------------------------------------------------------------

BODIES: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"open": stage_pb2.Open(identity=IDENTITY)},
        {"open": stage_pb2.Open(identity=IDENTITY, sampling=stage_pb2.Sampling(temperature=-1))},
        {"forward": tokens(0, 1, 2, output=stage_pb2.OUTPUT_HIDDEN)},
        {"forward": tokens(2, 3, output=stage_pb2.OUTPUT_LOGITS_ALL)},
        {"forward": stage_pb2.Forward(position=2, hidden=b"\0\0\0\0", output=stage_pb2.OUTPUT_TOKEN)},
        {"forward": stage_pb2.Forward(position=0, hidden=b"abc")},
        {"trim": stage_pb2.Trim(position=1)},
        {"cancel": stage_pb2.Cancel(keep_session=True)},
        {"cancel": stage_pb2.Cancel()},
        {"close": stage_pb2.Close(finish_reason="stop")},
        {"tokenize": stage_pb2.Tokenize(text=b"abc")},
        {"get_chat_template": stage_pb2.GetChatTemplate()},
        {"hello": HELLO},
        {"result": stage_pb2.Result()},
    ]
)


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """Frames that make sense one by one, most of them in a sensible order, and some of them damaged."""
    bodies = draw(st.lists(BODIES, max_size=8))
    if draw(st.booleans()):
        bodies = [{"open": stage_pb2.Open(identity=IDENTITY)}, *bodies]
    frames = [stage_pb2.StageFrame(hello=HELLO)]
    frames += [stage_pb2.StageFrame(request=number, **body) for number, body in enumerate(bodies, start=1)]
    raw = [frame.SerializeToString() for frame in frames]
    for damage in draw(st.lists(DAMAGES, max_size=2)):
        at = draw(st.integers(0, len(raw) - 1)) if raw else 0
        raw[at : at + 1] = damage(raw[at] if raw else b"", draw(st.binary(min_size=1, max_size=12)))
    return raw


Damage = Callable[[bytes, bytes], Sequence[bytes]]

DAMAGES: st.SearchStrategy[Damage] = st.sampled_from(
    [
        lambda _, noise: [noise],
        lambda frame, noise: [frame[: noise[0] % (len(frame) + 1)]],
        lambda frame, noise: [frame + noise],
        lambda frame, noise: [frame, noise],
        lambda frame, noise: [
            bytes(
                byte ^ (noise[index % len(noise)] if index % 7 == 0 else 0)
                for index, byte in enumerate(frame)
            )
        ],
        lambda frame, _: [frame, frame],
        lambda *_: [],
    ]
)


@given(conversations())
@settings(max_examples=50, deadline=None)
def test_no_bytes_disturb_the_service(conversation: list[bytes]) -> None:
    anyio.run(_converse, conversation)


async def _converse(conversation: list[bytes]) -> None:
    with anyio.fail_after(DEADLINE_S):
        async with rig_of([ToyBackend(0, 3)]) as rig:
            beside = RawClient(await rig.dial())
            await beside.open(IDENTITY)
            await _say(rig, conversation)
            assert (await beside.ask(forward=tokens(0, 1, 2))).result.length == 2
            await beside.link.client.aclose()
            await rig.ended()
        assert [entry.rows for entry in rig.ledger.entries[:1]] == [2]


async def _say(rig: Rig, conversation: list[bytes]) -> None:
    """Sends everything, reads what comes, and is gone."""
    link = await rig.dial()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(RawClient(link).rest)
        try:
            for raw in conversation:
                await link.client.send(raw)
            while link.up.waiting and not link.server.is_closed:
                await anyio.lowlevel.checkpoint()
        except TransportClosed:
            """The stream was ended, as it should be for what was sent."""
        await link.client.aclose()


# ---- any calls ----------------------------------------------------------------------------------

CALLS = st.lists(
    st.tuples(st.sampled_from(["forward", "interrupted", "trim", "fork"]), st.integers(0, 12)), max_size=20
)


@given(CALLS)
@settings(max_examples=50, deadline=None)
def test_session_holds_the_rows_that_its_user_knows_of(calls: list[tuple[str, int]]) -> None:
    anyio.run(_call, calls)


async def _call(calls: list[tuple[str, int]]) -> None:
    """Forwards, also such as are cancelled in their midst, trims and forks, beside a list."""
    backend = ToyBackend(0, 3, max_sessions=100)
    with anyio.fail_after(DEADLINE_S):
        async with rig_of([backend]) as rig:
            session, rows = await rig.stage(0).open_session(), list[int]()
            sessions = [session]
            for index, (what, number) in enumerate(calls):
                match what:
                    case "forward":
                        await session.forward_piece(tokens=[index, number], output=Output.NONE)
                        rows += [index, number]
                    case "interrupted":
                        rows += await _interrupted(session, number)
                    case "trim":
                        del rows[number:]
                        await session.trim(len(rows))
                    case "fork":
                        rows = rows[:number]
                        session = await session.fork(len(rows))
                        sessions.append(session)
                assert session.position == len(rows)
            result = await session.forward_piece(tokens=[7], output=Output.LOGITS)
            expected = ToyBackend(0, 3)
            near = await expected.open(IDENTITY, session.sampling, session.work)
            near.rows = list(rows)
            assert (
                result.logits
                == (
                    await near.forward(position=len(rows), tokens=[7], hidden=None, output=Output.LOGITS)
                ).logits
            )
            for one in sessions:
                await one.close("stop")
            await rig.ended()


async def _interrupted(session: RemoteSession, turns: int) -> list[int]:
    """A forward whose task is cancelled after a few turns of the event loop; the rows that it told of."""
    rows: list[int] = []

    async def forward() -> None:
        await session.forward_piece(tokens=[1, 2, 3], output=Output.NONE)
        rows.extend([1, 2, 3])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(forward)
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    return rows
