"""Whatever happens to messages: frames arrive once, in order and as they were, or both ends learn that they
do not."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_worker.node.relay.chunk import HEADER, Kind
from gguf_worker.node.relay.ending import Ending
from node.relay.wire import LIMITS, TIMERS, Fate, Side, Wire

frames = st.lists(
    st.one_of(
        st.binary(max_size=40), st.integers(0, 2000).map(lambda size: bytes(i % 251 for i in range(size)))
    ),
    max_size=12,
)
copies: st.SearchStrategy[Fate] = st.one_of(
    st.just((0.001,)),
    st.just(()),
    st.lists(st.sampled_from((0.0005, 0.001, 0.003, 0.05, 0.7, 3.0)), min_size=1, max_size=3),
)
fates = st.tuples(st.lists(copies, max_size=60), st.lists(copies, max_size=60))


def carried_by(
    fates: tuple[list[Fate], list[Fate]],
    after: Fate = (0.001,),
    disturb: Callable[[Wire, int, int], None] = lambda *_: None,
) -> Wire:
    def fate(side: int, number: int) -> Fate:
        return fates[side][number] if number < len(fates[side]) else after

    return Wire(fate, disturb=disturb)


def all_arrived(wire: Wire, up: list[bytes], down: list[bytes]) -> bool:
    client, node = wire.sides
    return len(node.received) >= len(up) and len(client.received) >= len(down)


@settings(max_examples=60, deadline=None)
@given(up=frames, down=frames, fates=fates)
def test_frames_arrive_once_in_order_or_both_ends_learn_that_the_link_is_lost(
    up: list[bytes], down: list[bytes], fates: tuple[list[Fate], list[Fate]]
) -> None:
    wire = carried_by(fates)
    client, node = wire.sides
    client.to_send, node.to_send = list(up), list(down)
    wire.run(lambda: all_arrived(wire, up, down))

    assert node.received == up[: len(node.received)]
    assert client.received == down[: len(client.received)]
    if not all_arrived(wire, up, down):
        wire.run(lambda: all(side.link.ended is not None for side in wire.sides))
        assert [side.link.ended and side.link.ended.code for side in wire.sides] == ["lost", "lost"]
    for side in wire.sides:
        assert side.most_held <= LIMITS.max_frame_bytes + 2 * LIMITS.window_bytes + 64 * 12


@settings(max_examples=60, deadline=None)
@given(
    up=frames,
    down=frames,
    fates=fates,
    events=st.dictionaries(
        st.tuples(st.integers(0, 1), st.integers(0, 60)),
        st.one_of(st.integers(1, 200), st.sampled_from(("came back", "nobody listens"))),
        max_size=12,
    ),
)
def test_reconnections_and_other_sizes_of_messages_change_nothing(
    up: list[bytes],
    down: list[bytes],
    fates: tuple[list[Fate], list[Fate]],
    events: dict[tuple[int, int], int | str],
) -> None:
    def disturb(wire: Wire, side: int, number: int) -> None:
        event, link = events.get((side, number)), wire.sides[side].link
        if isinstance(event, int):
            wire.chunk_bytes = event  # another server, with another maximum
        elif event == "came back":
            link.came_back(wire.now)
        elif event == "nobody listens":
            link.nobody_listens(wire.now)

    wire = carried_by(fates, disturb=disturb)
    client, node = wire.sides
    client.to_send, node.to_send = list(up), list(down)
    wire.run(lambda: all_arrived(wire, up, down))
    assert node.received == up[: len(node.received)]
    assert client.received == down[: len(client.received)]
    if not all_arrived(wire, up, down):
        wire.run(lambda: all(side.link.ended is not None for side in wire.sides))
        assert [side.link.ended and side.link.ended.code for side in wire.sides] == ["lost", "lost"]


@settings(max_examples=30, deadline=None)
@given(up=frames, lost_from=st.integers(0, 40), side=st.integers(0, 1))
def test_a_way_that_breaks_for_ever_ends_both_ends_within_the_silence_limit(
    up: list[bytes], lost_from: int, side: int
) -> None:
    def fate(sender: int, number: int) -> Fate:
        return () if sender == side and number >= lost_from else (0.001,)

    wire = Wire(fate)
    wire.sides[0].to_send = list(up)
    wire.run(lambda: all(one.link.ended is not None for one in wire.sides))
    assert [one.link.ended and one.link.ended.code for one in wire.sides] == ["lost", "lost"]
    assert wire.now <= 1000 + 60 * TIMERS.silence_s
    assert wire.sides[1].received == up[: len(wire.sides[1].received)]


@settings(max_examples=50, deadline=None)
@given(up=frames, fates=fates, breaks=st.booleans())
def test_an_orderly_end_follows_everything_that_was_sent(
    up: list[bytes], fates: tuple[list[Fate], list[Fate]], breaks: bool
) -> None:
    wire = carried_by(fates, after=() if breaks else (0.001,))
    client, node = wire.sides
    client.to_send = list(up)
    wire.run(lambda: not client.to_send and client.link.is_flushed)
    client.link.finish(Ending(code="closed", message="done"), wire.now)
    wire.run(lambda: all(side.link.ended is not None for side in wire.sides))

    assert node.link.ended is not None
    assert node.received == up[: len(node.received)]
    if node.link.ended.code == "closed":
        assert node.received == up
    else:
        assert node.link.ended.code == "lost"


@settings(max_examples=60, deadline=None)
@given(
    up=frames,
    garbage=st.lists(
        st.one_of(
            st.binary(max_size=80),
            st.builds(
                lambda kind, epoch, numbers, payload: (
                    HEADER.pack(1, kind, 3, len(payload), epoch, *numbers) + payload
                ),
                st.sampled_from(list(Kind)),
                st.integers(8, 2**64 - 1),  # whoever knows the epoch is the peer
                st.tuples(*[st.integers(0, 2**64 - 1)] * 3),
                st.binary(max_size=20),
            ),
        ),
        max_size=8,
    ),
)
def test_messages_of_others_change_nothing(up: list[bytes], garbage: list[bytes]) -> None:
    wire = Wire()
    client, node = wire.sides
    client.to_send = list(up)
    for message in garbage:
        wire.inject(0, message)
        wire.inject(1, message)
    wire.run(lambda: len(node.received) >= len(up))
    assert node.received == up
    assert node.link.dropped == client.link.dropped == len(garbage)


@settings(max_examples=60, deadline=None)
@given(
    up=frames,
    hostile=st.lists(
        st.builds(
            lambda kind, flags, numbers, payload: (
                HEADER.pack(1, kind, flags, len(payload), 7, *numbers) + payload
            ),
            st.sampled_from(list(Kind)),
            st.integers(0, 255),
            st.tuples(*[st.one_of(st.integers(0, 2000), st.integers(0, 2**64 - 1))] * 3),
            st.binary(max_size=80),
        ),
        max_size=12,
    ),
)
def test_a_peer_that_lies_is_no_danger(up: list[bytes], hostile: list[bytes]) -> None:
    """It never raises, never takes more memory than was agreed, and always ends."""
    wire = Wire(lambda *_: ())
    side: Side = wire.sides[0]
    side.to_send = list(up)
    side.reads = False
    for message in hostile:
        wire.inject(0, message)
        wire.settle()
        assert side.link.held_bytes <= LIMITS.max_frame_bytes + 3 * LIMITS.window_bytes + 64 * 200
    wire.run(lambda: side.link.ended is not None)
    assert side.link.ended is not None
