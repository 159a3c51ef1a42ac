"""What a link does by itself, and when."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest

from gguf_worker.node.relay.chunk import HEADER, Chunk, Kind, decode, encode
from gguf_worker.node.relay.ending import MAX_BYTES, Ending
from gguf_worker.node.relay.incoming import FRAME_OVERHEAD, MOST_EARLY, Incoming
from gguf_worker.node.relay.link import Link, LinkLimits, LinkTimers
from gguf_worker.node.relay.outgoing import PREFIX
from gguf_worker.node.relay.share import Share
from node.relay.wire import EPOCH, Wire

TIMERS = LinkTimers()
LIMITS = LinkLimits(chunk_bytes=100, window_bytes=1000, max_frame_bytes=5000)


def new_link(limits: LinkLimits = LIMITS) -> Link:
    return Link(
        epoch=EPOCH, peer_window=1000, limits=limits, share=limits.new_share(), timers=TIMERS, now=0.0
    )


def said(link: Link, now: float) -> list[Chunk]:
    """Everything that it wants to say now."""
    chunks = []
    while (message := link.next_message(now, LIMITS.chunk_bytes)) is not None:
        chunk = decode(message)
        assert chunk is not None
        chunks.append(chunk)
    return chunks


def hear(link: Link, now: float, kind: Kind = Kind.STATE, **values: object) -> None:
    link.receive(encode(Chunk(kind=kind, epoch=EPOCH, **values)), now)  # type: ignore[arg-type]


def spans(chunks: list[Chunk]) -> list[tuple[int, int]]:
    return [(chunk.offset, chunk.offset + len(chunk.payload)) for chunk in chunks if chunk.kind is Kind.DATA]


def test_a_new_link_says_nothing_until_its_heartbeat_is_due() -> None:
    link = new_link()
    assert said(link, 0.0) == []
    assert link.due() == TIMERS.heartbeat_s
    (beat,) = said(link, link.due())
    assert (beat.kind, beat.acknowledged, beat.limit, beat.asks) == (Kind.STATE, 0, 1000, False)


def test_a_frame_goes_in_chunks_with_its_length_before_it() -> None:
    link = new_link()
    link.offer(bytes(250))
    chunks = said(link, 0.0)
    assert spans(chunks) == [(0, 100), (100, 200), (200, 254)]
    assert bytes(chunks[0].payload[:4]) == (250).to_bytes(4, "little")
    assert link.is_flushed


def test_no_more_is_under_way_than_the_window() -> None:
    link = new_link()
    link.offer(bytes(3000))
    assert spans(said(link, 0.0))[-1] == (900, 1000)
    assert not link.is_flushed
    hear(link, 0.1, acknowledged=500, limit=1200)
    assert spans(said(link, 0.1)) == [(1000, 1100), (1100, 1200)]
    hear(link, 0.2, acknowledged=500, limit=5000)
    assert spans(said(link, 0.2))[-1] == (1400, 1500)


def test_a_link_that_was_not_used_yet_has_little_and_then_its_window() -> None:
    link = new_link(replace(LIMITS, first_window_bytes=200))
    (beat,) = said(link, link.due())
    assert beat.limit == 200
    hear(link, 3.0, Kind.DATA, offset=0, payload=b"\2\0\0\0ok")
    (state,) = said(link, 3.0)
    assert (state.acknowledged, state.limit) == (6, 1006 - 2 - FRAME_OVERHEAD)
    assert link.take(3.0) == b"ok"


def test_links_share_what_a_connection_may_be_behind() -> None:
    share = Share(total_bytes=1000, most_bytes=400, least_bytes=50)
    windows = {}
    for share.links in (0, 1, 2, 3, 10, 100):
        windows[share.links] = share.window
    assert windows == {0: 400, 1: 400, 2: 400, 3: 333, 10: 100, 100: 50}


def test_without_news_the_oldest_chunk_goes_again_ever_more_rarely() -> None:
    link = new_link()
    link.offer(bytes(250))
    said(link, 0.0)
    moments = []
    while link.ended is None:
        moment = link.due()
        if spans(said(link, moment)) == [(0, 100)]:
            moments.append(moment)
    assert moments[:3] == [0.5, 1.5, 3.5]
    assert link.ended.code == "lost"


def test_when_the_chunk_that_went_again_was_what_was_missing_the_rest_follows() -> None:
    link = new_link()
    link.offer(bytes(250))
    said(link, 0.0)
    said(link, 0.5)
    hear(link, 0.6, acknowledged=100, limit=1000)
    assert spans(said(link, 0.6)) == [(100, 200), (200, 254)]


def test_when_it_was_only_late_nothing_follows() -> None:
    link = new_link()
    link.offer(bytes(250))
    said(link, 0.0)
    said(link, 0.5)
    hear(link, 0.6, acknowledged=200, limit=1000)
    assert spans(said(link, 0.6)) == []


def test_a_gap_is_told_at_once_and_filled_once() -> None:
    link, peer = new_link(), new_link()
    link.offer(bytes(350))
    chunks = said(link, 0.0)
    for chunk in (chunks[0], chunks[3]):
        peer.receive(encode(chunk), 0.1)
    (state,) = said(peer, 0.1)
    assert (state.has_gap, state.acknowledged, state.offset) == (True, 100, 300)
    for _ in range(3):
        link.receive(encode(state), 0.2)
    filled = said(link, 0.2)
    assert spans(filled) == [(100, 200), (200, 300)]
    for chunk in filled:
        peer.receive(encode(chunk), 0.3)
    assert peer.take(0.3) == bytes(350)


def test_an_acknowledgement_waits_for_something_to_go_along_with() -> None:
    link = new_link()
    hear(link, 1.0, Kind.DATA, offset=0, payload=b"\2\0\0\0ok")
    assert said(link, 1.0) == []
    assert link.due() == 1.0 + TIMERS.acknowledge_s
    link.offer(b"answer")
    (answer,) = said(link, 1.01)
    assert (answer.kind, answer.acknowledged) == (Kind.DATA, 6)
    assert said(link, 1.0 + TIMERS.acknowledge_s) == []


def test_a_message_that_came_before_is_acknowledged_again() -> None:
    link = new_link()
    for moment in (1.0, 1.1):
        hear(link, moment, Kind.DATA, offset=0, payload=b"\2\0\0\0ok")
    (state,) = said(link, 1.1)
    assert (state.kind, state.acknowledged) == (Kind.STATE, 6)


def test_a_sender_without_a_place_asks_for_one() -> None:
    """The message that gave it the place was lost."""
    link = new_link()
    link.offer(bytes(2000))
    said(link, 0.0)
    hear(link, 0.1, acknowledged=1000, limit=1000)
    assert said(link, 0.1) == []
    (state,) = said(link, link.due())
    assert state.asks
    peer = new_link()
    peer.receive(encode(state), 1.0)
    assert [chunk.kind for chunk in said(peer, 1.0)] == [Kind.STATE]


def test_a_reader_that_takes_a_frame_makes_place_at_once() -> None:
    wire = Wire(limits=LIMITS)
    client, node = wire.sides
    node.reads = False
    client.to_send = [bytes(800), bytes(3000)]
    wire.run(lambda: client.link.due() > wire.now + 0.3)
    assert not client.link.is_flushed
    node.reads = True
    start = wire.now
    wire.run(lambda: len(node.received) == 2)
    assert wire.now - start < 0.1


def test_silence_is_a_loss() -> None:
    link = new_link()
    hear(link, 5.0)
    said(link, 5.0 + TIMERS.silence_s - 0.01)
    assert link.ended is None
    assert link.expires() == 5.0 + TIMERS.silence_s
    assert [chunk.kind for chunk in said(link, link.expires())] == [Kind.RESET]
    assert link.ended is not None
    assert (link.ended.code, link.ended.retryable) == ("lost", True)
    assert link.due() == float("inf")


def test_nobody_listening_is_a_loss_when_it_stays_so() -> None:
    link = new_link()
    link.nobody_listens(1.0)
    (state,) = said(link, link.due())
    assert state.asks
    hear(link, 2.0)
    assert link.expires() == 2.0 + TIMERS.silence_s
    link.nobody_listens(3.0)
    link.nobody_listens(4.0)
    assert link.expires() == 3.0 + TIMERS.absence_s
    said(link, link.expires())
    assert link.ended is not None
    assert link.ended.code == "lost"


def test_a_new_connection_asks_and_sends_again_at_once() -> None:
    link = new_link()
    link.offer(bytes(250))
    said(link, 0.0)
    link.came_back(0.1)
    chunks = said(link, 0.1)
    assert spans(chunks) == [(0, 100)]
    assert any(chunk.asks for chunk in chunks)


def test_a_reset_is_the_end() -> None:
    link = new_link()
    hear(link, 0.1, Kind.RESET)
    assert link.ended is not None
    assert link.ended.code == "lost"
    assert said(link, 0.1) == []


def test_an_end_is_repeated_until_it_is_acknowledged() -> None:
    link = new_link()
    link.finish(Ending(code="closed", message="done"), 0.0)
    link.finish(Ending(code="closed", message="again"), 0.0)
    kinds = [[chunk.kind for chunk in said(link, moment)] for moment in (0.0, 0.1, 0.3)]
    assert kinds == [[Kind.CLOSE], [], [Kind.CLOSE]]
    hear(link, 0.4, acknowledged=1, limit=1000)
    assert link.ended == Ending(code="closed", message="done")


def test_an_end_that_nobody_acknowledges_is_one_all_the_same() -> None:
    link = new_link()
    link.finish(Ending(code="closed", message="done"), 0.0)
    assert said(link, TIMERS.linger_s)[-1].kind is Kind.RESET
    assert link.ended is not None


def test_the_acknowledgement_of_an_end_is_repeated_too() -> None:
    link = new_link()
    for moment in (0.1, 0.2):
        hear(link, moment, Kind.CLOSE, payload=Ending(code="stopped", message="bye").to_json())
        (state,) = said(link, moment)
        assert (state.kind, state.acknowledged) == (Kind.STATE, 1)
    assert link.ended == Ending(code="closed", message="bye", fields={"reason": "stopped"})


def test_a_frame_that_is_larger_than_agreed_ends_both_sides() -> None:
    link, peer = new_link(), new_link()
    link.offer(bytes(6000))
    for chunk in said(link, 0.0):
        peer.receive(encode(chunk), 0.1)
    (reset,) = said(peer, 0.1)
    link.receive(encode(reset), 0.2)
    for side in (link, peer):
        assert side.ended is not None
        assert side.ended.code == "too_large"


def test_a_peer_that_sends_single_bytes_costs_no_more_than_they_are() -> None:
    incoming = Incoming(share=Share(), first_window=100_000, max_frame_bytes=100_000)
    stream = PREFIX.pack(50_000) + bytes(range(250)) * 200
    tracemalloc.start()
    try:
        for offset in range(30_000):
            incoming.accept(offset, memoryview(stream[offset : offset + 1]))
        for offset in range(35_000, 50_000):
            incoming.accept(offset, memoryview(stream[offset : offset + 1]))
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 30_000 + MOST_EARLY * 500
    incoming.accept(30_000, memoryview(stream[30_000:]))
    assert incoming.take() == stream[PREFIX.size :]
    assert incoming.held_bytes == 0


# ---- messages ------------------------------------------------------------------------------------


def test_a_chunk_is_read_as_it_was_written() -> None:
    chunk = Chunk(
        kind=Kind.DATA,
        epoch=2**64 - 1,
        offset=1,
        acknowledged=2,
        limit=3,
        asks=True,
        has_gap=True,
        payload=b"abc",
    )
    message = encode(chunk)
    assert decode(message) == chunk
    assert message.hex() == (
        "01010300" + "03000000" + "ffffffffffffffff" + "0100000000000000" + "0200000000000000"
        "0300000000000000" + "616263"
    )


@pytest.mark.parametrize(
    "message",
    [
        b"",
        bytes(HEADER.size),
        HEADER.pack(2, 1, 0, 0, EPOCH, 0, 0, 0),
        HEADER.pack(1, 9, 0, 0, EPOCH, 0, 0, 0),
        HEADER.pack(1, 1, 0, 5, EPOCH, 0, 0, 0) + b"four",
        HEADER.pack(1, 1, 0, 3, EPOCH, 0, 0, 0) + b"four",
    ],
)
def test_what_is_no_chunk_is_dropped(message: bytes) -> None:
    link = new_link()
    link.receive(message, 1.0)
    assert link.dropped == 1
    assert link.expires() == TIMERS.silence_s


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"[]", b'{"code": 1}', b"[" * 100_000, b'{"code": "lost", "fields": 3}']
)
def test_an_ending_that_nobody_understands_is_an_end(data: bytes) -> None:
    assert Ending.from_json(data).code in ("closed", "lost")


@pytest.mark.parametrize("letter", ["a", "\N{GRINNING FACE}"])
def test_a_long_ending_is_cut(letter: str) -> None:
    ending = Ending(code="lost", message=letter * 10_000, fields={"a": "b" * 10_000})
    assert len(ending.to_json()) <= MAX_BYTES
    assert Ending.from_json(ending.to_json()).code == "lost"
