"""What a stream refuses, and what that costs: never another stream, and no more than the rule says."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from gguf_worker.logs import fields_of
from gguf_worker.node import versions
from gguf_worker.node.stage_stream import StreamSettings
from gguf_worker.node.text_service import MAX_TEXT_BYTES, MAX_TOKENS
from gguf_worker.testing.memory_transport import Alter, lose, repeat, swap
from gguf_worker_v1 import common_pb2, stage_pb2
from manual_clock import ManualClock
from node.raw import HELLO, RawClient, tokens
from node.rigs import Rig, node, rig_of
from node.toy_backend import ToyBackend

pytestmark = pytest.mark.anyio


async def raw(rig: Rig, **options: int) -> RawClient:
    return RawClient(await rig.dial(**options))


def identity(rig: Rig, index: int = 0) -> common_pb2.Identity:
    return rig.backends[index].describe().identity


async def test_neither_hello_waits_for_the_other() -> None:
    async with node("toy") as rig:
        client = await raw(rig)
        hello = (await client.receive()).hello
        assert (hello.version, hello.node) == (versions.version(), "node-a")
        assert hello.max_frame_bytes == StreamSettings().max_frame_bytes


async def test_silent_client_is_not_waited_for() -> None:
    async with rig_of([ToyBackend(0, 3)], settings=StreamSettings(hello_timeout_s=0.02)) as rig:
        assert (await (await raw(rig)).refusal()).code == "timeout"


async def test_client_that_does_not_even_read_the_hello_is_not_waited_for() -> None:
    settings = StreamSettings(hello_timeout_s=0.02, farewell_s=0.02)
    async with rig_of([ToyBackend(0, 3)], settings=settings) as rig:
        rig.prepare = lambda link: link.down.stall()
        client = await raw(rig)
        await client.send_frame(stage_pb2.StageFrame(hello=HELLO))
        with anyio.fail_after(2):
            await rig.ended()
        closed_with = client.link.server.closed_with
        assert closed_with is not None
        assert closed_with.code == "timeout"


@pytest.mark.parametrize(
    "frame",
    [
        stage_pb2.StageFrame(request=1, open=stage_pb2.Open()),
        stage_pb2.StageFrame(),
        stage_pb2.StageFrame(request=1, result=stage_pb2.Result()),
    ],
)
async def test_stream_begins_with_hello(frame: stage_pb2.StageFrame) -> None:
    async with node("toy") as rig:
        client = await raw(rig)
        await client.send_frame(frame)
        assert (await client.refusal()).code == "bad_frame"


async def test_another_major_version_is_refused_with_both_numbers() -> None:
    async with node("toy") as rig:
        client = await raw(rig)
        await client.send_frame(
            stage_pb2.StageFrame(hello=stage_pb2.Hello(version=common_pb2.Version(major=2, minor=3)))
        )
        error = await client.refusal()
        assert (error.code, dict(error.fields)) == ("version", {"expected": "1.0", "actual": "2.3"})
        closed_with = client.link.server.closed_with
        assert closed_with is not None
        assert closed_with.code == "version"


async def test_newer_minor_version_is_served_and_its_fields_skipped() -> None:
    """Field 999 of every message is one that nobody knows yet."""
    unknown = b"\xba\x3e\x03new"
    async with node("toy") as rig:
        client = await raw(rig)
        hello = stage_pb2.Hello(version=common_pb2.Version(major=1, minor=99))
        hello.MergeFromString(unknown)
        await client.greet(hello)
        wanted = stage_pb2.Open(identity=identity(rig))
        wanted.MergeFromString(unknown)
        assert (await client.ask(open=wanted)).HasField("opened")


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"\xff" * 40, "bad_frame"),
        (b"", "bad_frame"),
        (stage_pb2.StageFrame(request=1).SerializeToString(), "bad_frame"),
        (stage_pb2.StageFrame(request=1, result=stage_pb2.Result()).SerializeToString(), "bad_frame"),
        (stage_pb2.StageFrame(trim=stage_pb2.Trim()).SerializeToString(), "bad_frame"),
        (stage_pb2.StageFrame(request=2, trim=stage_pb2.Trim()).SerializeToString(), "sequence"),
        (bytes(StreamSettings().max_frame_bytes + 1), "bad_frame"),
    ],
    ids=["garbage", "nothing", "no body", "an answer", "no number", "a gap", "too large"],
)
async def test_bad_frame_ends_its_own_stream_only(frame: bytes, code: str) -> None:
    """The session of that stream is ended, its work left open; the stream beside it goes on."""
    async with node("toy") as rig:
        good, bad = await raw(rig), await raw(rig, max_frame_bytes=2 * StreamSettings().max_frame_bytes)
        await good.open(identity(rig))
        await bad.greet()
        assert (await good.ask(forward=tokens(0, 1, 2))).result.length == 2
        await bad.link.client.send(frame)
        assert (await bad.refusal()).code == code
        assert (await good.ask(forward=tokens(2, 3))).result.length == 3
        await good.link.client.aclose()
        await rig.ended()


async def test_gap_names_both_numbers_and_frees_the_session(kind: str) -> None:
    async with node(kind) as rig:
        client = await raw(rig)
        await client.open(identity(rig))
        await client.ask(forward=tokens(0, 1, 2, 3))
        client.number += 1
        await client.send(trim=stage_pb2.Trim(position=0))
        assert dict((await client.refusal()).fields) == {"expected": "3", "actual": "4"}
        await rig.ended()
        assert rig.ledger.entries[0].reason == ""


@pytest.mark.parametrize(("fault", "ends"), [(repeat(2), False), (lose(2), True), (swap(2), True)])
async def test_duplicates_are_dropped_and_what_is_missing_ends_the_stream(fault: Alter, ends: bool) -> None:
    """Of hello, open and three forwards the first forward is duplicated, lost, or overtaken."""
    async with node("toy") as rig:
        client = await raw(rig)
        client.link.up.alter = fault
        await client.open(identity(rig))
        for position in range(3):
            await client.send(forward=tokens(position, 5))
        if ends:
            assert (await client.refusal()).code == "sequence"
        else:
            assert [(await client.receive()).result.length for _ in range(3)] == [1, 2, 3]
            assert rig.ledger.entries[0].rows == 3


# ---- opens that are refused: their stream ends --------------------------------------------------


@pytest.mark.parametrize(
    ("change", "field", "expected"),
    [
        (lambda wanted: setattr(wanted, "artifact", "00" * 32), "artifact", "00" * 32),
        (lambda wanted: setattr(wanted, "end", 7), "end", "7"),
        (lambda wanted: wanted.recipe.update({"boundary": "bf16"}), "recipe.boundary", "bf16"),
        (lambda wanted: wanted.recipe.pop("boundary"), "recipe.boundary", "missing"),
        (lambda wanted: wanted.recipe.update({"new": "1"}), "recipe.new", "1"),
    ],
)
async def test_another_identity_is_refused_with_both_values(
    kind: str, change: Callable[[common_pb2.Identity], None], field: str, expected: str
) -> None:
    async with node(kind) as rig:
        client = await raw(rig)
        await client.greet()
        wanted = identity(rig)
        change(wanted)
        error = (await client.ask(open=stage_pb2.Open(identity=wanted))).error
        assert error.code == "identity"
        assert error.fields[f"{field}.expected"] == expected
        assert error.fields[f"{field}.actual"] != expected
        assert field in error.message
        assert len(error.fields) == 2
        assert (await client.rest())[0] == []
        closed_with = client.link.server.closed_with
        assert closed_with is not None
        assert closed_with.code == "identity"
        assert rig.ledger.entries == []


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ({"sampling": stage_pb2.Sampling(temperature=-1)}, "argument"),
        ({"sampling": stage_pb2.Sampling(top_p=0)}, "argument"),
        ({"work_id": "two words"}, "argument"),
        ({"request_id": "x" * 129}, "argument"),
        ({"account": "x" * 129}, "argument"),
        ({"account": "two\nlines"}, "argument"),
        ({"sampling": stage_pb2.Sampling(logit_bias=[stage_pb2.LogitBias()] * 4097)}, "argument"),
        ({"fork": stage_pb2.Fork(session="ab" * 16)}, "no_session"),
    ],
)
async def test_open_that_makes_no_sense_is_refused(kind: str, wanted: dict[str, Any], code: str) -> None:
    async with node(kind) as rig:
        client = await raw(rig)
        await client.greet()
        open_ = stage_pb2.Open(identity=identity(rig), **wanted)
        assert (await client.ask(open=open_)).error.code == code
        assert rig.ledger.entries == []


async def test_identity_that_is_a_flood_is_not_repeated() -> None:
    """Neither the answer nor the log says again what a client made up."""
    async with node("toy") as rig:
        client = await raw(rig)
        await client.greet()
        wanted = identity(rig)
        wanted.recipe.update({f"field{index}": "x" * 100 for index in range(1000)})
        error = (await client.ask(open=stage_pb2.Open(identity=wanted))).error
        assert (error.code, len(error.fields)) == ("argument", 0)
        assert len(error.message) < 100


async def test_full_stage_says_so_and_takes_the_next_one_later() -> None:
    async with rig_of([ToyBackend(0, 3, max_sessions=1)]) as rig:
        first, second = await raw(rig), await raw(rig)
        await first.open(identity(rig))
        await second.greet()
        error = (await second.ask(open=stage_pb2.Open(identity=identity(rig)))).error
        assert (error.code, error.retryable) == ("capacity", True)
        await first.send(close=stage_pb2.Close())
        assert [(await first.receive()).WhichOneof("body") for _ in range(2)] == ["telemetry", "closed"]
        await (await raw(rig)).open(identity(rig))


# ---- requests that are refused: their stream goes on --------------------------------------------


async def test_requests_out_of_place_are_refused(kind: str) -> None:
    async with node(kind) as rig:
        client = await raw(rig)
        await client.greet()
        assert (await client.ask(forward=tokens(0, 1))).error.code == "no_session"
        assert (await client.ask(open=stage_pb2.Open(identity=identity(rig)))).HasField("opened")
        assert (await client.ask(open=stage_pb2.Open(identity=identity(rig)))).error.code == "session_open"
        assert (await client.ask(forward=tokens(3, 1))).error.code == "position"
        assert (await client.ask(forward=tokens(0))).error.code == "argument"
        most = rig.backends[0].describe().capacity.max_batch
        assert (await client.ask(forward=tokens(0, *[1] * (most + 1)))).error.code == "argument"
        long = stage_pb2.Tokenize(text=bytes(MAX_TEXT_BYTES + 1))
        assert (await client.ask(tokenize=long)).error.code == "argument"
        many = stage_pb2.Detokenize(tokens=[1] * (MAX_TOKENS + 1))
        assert (await client.ask(detokenize=many)).error.code == "argument"
        unknown = stage_pb2.Forward(tokens=[1], output=99)  # type: ignore[arg-type]
        assert (await client.ask(forward=unknown)).error.code == "argument"
        assert (await client.ask(trim=stage_pb2.Trim(position=1))).error.code == "position"
        assert (await client.ask(close=stage_pb2.Close(finish_reason="bored"))).error.code == "argument"
        assert (await client.ask(forward=tokens(0, 1))).result.length == 1
        assert (await client.ask(close=stage_pb2.Close())).telemetry.rows == 1
        assert (await client.receive()).closed.kv_cells_freed == 1
        assert (await client.ask(forward=tokens(0, 1))).error.code == "session_closed"


async def test_answer_that_the_client_does_not_take_is_not_sent_and_undone(kind: str) -> None:
    async with node(kind) as rig:
        client = await raw(rig)
        await client.greet(stage_pb2.Hello(version=HELLO.version, max_frame_bytes=130))
        await client.ask(open=stage_pb2.Open(identity=identity(rig)))
        many = tokens(0, *[1] * 16, output=stage_pb2.OUTPUT_HIDDEN)
        assert (await client.ask(forward=many)).error.code == "too_large"
        one = tokens(0, 1, output=stage_pb2.OUTPUT_HIDDEN)
        assert (await client.ask(forward=one)).result.length == 1
        assert rig.ledger.entries[0].rows == 1


async def test_flood_is_not_read(note: Callable[[str], None]) -> None:
    """A client that never waits for an answer is held up; the node keeps a bounded number of its frames."""
    backend = ToyBackend(0, 3)
    backend.gate = anyio.Event()
    settings = StreamSettings(queue_frames=8, queue_bytes=10_000)
    async with rig_of([backend], settings=settings) as rig:
        for size, kept in ((1, 8), (2000, 2)):
            client = await raw(rig)
            await client.open(identity(rig))
            sent = 0
            with anyio.move_on_after(0.1):
                while True:
                    await client.send(forward=stage_pb2.Forward(position=sent, hidden=bytes(size)))
                    sent += 1
            assert sent < kept + 16
            note(f"a flood of forwards of {size} bytes: {sent} taken, wires included")
            await client.link.client.aclose()
        backend.gate.set()
        await rig.ended()


async def test_streams_share_the_bytes_of_a_node() -> None:
    """A client that floods its stream leaves every other one a request at a time, which is what it needs."""
    backend = ToyBackend(0, 3)
    backend.gate = anyio.Event()
    async with rig_of([backend], queued_bytes=4000) as rig:
        flood, other = await raw(rig), await raw(rig)
        for client in (flood, other):
            await client.open(identity(rig))
        with anyio.move_on_after(0.1):
            while True:
                await flood.send(forward=stage_pb2.Forward(hidden=bytes(1000)))
        assert flood.number < 24
        with anyio.move_on_after(0.1):
            while True:
                await other.send(forward=stage_pb2.Forward(hidden=bytes(1000)))
        assert other.number < flood.number
        backend.gate.set()
        for request in range(2, 8):
            assert (await other.receive()).request == request
        await flood.link.client.aclose()
        await other.link.client.aclose()
        await rig.ended()


async def test_stream_without_a_session_is_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    """After hello, and after a session's end; one that has a session is kept however long it is silent."""
    caplog.set_level(logging.INFO)
    clock, backend = ManualClock(), ToyBackend(0, 3)
    async with rig_of([backend], clock=clock) as rig:
        fresh, ended, used = await raw(rig), await raw(rig), await raw(rig)
        await fresh.greet()
        for client in (ended, used):
            await client.open(identity(rig))
        clock.advance(50)
        await anyio.wait_all_tasks_blocked()
        await ended.ask(close=stage_pb2.Close(finish_reason="stop"))
        assert (await ended.receive()).HasField("closed")
        clock.advance(20)
        assert (await fresh.refusal()).code == "idle"
        clock.advance(50)
        assert (await ended.refusal()).code == "idle"
        clock.advance(1000)
        await anyio.wait_all_tasks_blocked()
        assert (await used.ask(forward=tokens(0, 1))).result.length == 1
    told = [(one.event, fields_of(one)["code"]) for one in caplog.records if hasattr(one, "event")]
    assert [told.count((event, "idle")) for event in ("stage_refused", "stage_session")] == [1, 1]


async def test_peer_that_breaks_off_costs_nothing(kind: str) -> None:
    """At every number of frames from hello on."""
    async with node(kind) as rig:
        for cut_after in range(4):
            link = await rig.dial()
            client = RawClient(link)
            for body in (
                {"hello": HELLO},
                {"open": stage_pb2.Open(identity=identity(rig))},
                {"forward": tokens(0, 1, 2)},
            )[:cut_after]:
                if "hello" in body:
                    await client.send_frame(stage_pb2.StageFrame(hello=HELLO))
                else:
                    await client.send(**body)
            link.cut()
        await rig.ended()
        assert {entry.reason for entry in rig.ledger.entries} <= {""}
