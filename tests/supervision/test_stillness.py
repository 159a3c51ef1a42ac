"""Slow or hanging: the judgement alone, under a clock of the test's own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gguf_worker.supervision.hang import LOOKS_PER_DEADLINE, Stillness

STALL_S = 60.0
LOOK_S = STALL_S / LOOKS_PER_DEADLINE

gaps = st.floats(0.001, 100_000)
"""Between two looks: a supervisor that gets no processor, or is stopped or suspended, looks late."""


@given(gaps=st.lists(gaps, max_size=60), slowness=st.integers(1, LOOKS_PER_DEADLINE))
def test_worker_that_moves_now_and_then_is_never_blamed(gaps: list[float], slowness: int) -> None:
    """However starved both are: one sign of progress in so many looks as make a deadline is enough."""
    stillness, now = Stillness(longest_look_s=LOOK_S), 0.0
    for look, gap in enumerate(gaps):
        now += gap
        stillness.look(look // slowness, now)
        assert stillness.still_s < STALL_S


@given(before=st.lists(gaps, max_size=20))
def test_worker_that_stands_still_is_found_within_its_deadline_and_two_looks(before: list[float]) -> None:
    """Whatever was before, a hang counts from its first look on."""
    stillness, now = Stillness(longest_look_s=LOOK_S), 0.0
    for look, gap in enumerate(before):
        now += gap
        stillness.look(look, now)
    looks = 0
    while stillness.still_s < STALL_S:
        now += LOOK_S
        stillness.look("the last sign", now)
        looks += 1
    assert LOOKS_PER_DEADLINE < looks <= LOOKS_PER_DEADLINE + 2  # one for rounding


def test_stillness_counts_from_the_last_change() -> None:
    """Only another reading is progress, however often the same one comes."""
    stillness = Stillness(longest_look_s=5.0)
    stillness.look(("load", 5), 12.0)
    stillness.look(("load", 5), 14.0)
    stillness.look(("load", 5), 15.0)
    assert stillness.still_s == 3.0
    stillness.look(("load", 6), 16.0)
    assert stillness.still_s == 0.0


def test_stillness_of_a_worker_that_owes_nothing_is_none() -> None:
    """An idle worker does not hang, and a debt begins to count when it is first seen."""
    stillness = Stillness(longest_look_s=5.0)
    for moment in range(10):
        stillness.look(None, float(moment))
    stillness.look("forward", 10.0)
    assert stillness.still_s == 0.0
    stillness.look("forward", 12.0)
    assert stillness.still_s == 2.0


def test_supervisor_that_was_stopped_itself_blames_nobody() -> None:
    """However late a look comes, it counts for one: nobody knows what the worker did in between."""
    stillness = Stillness(longest_look_s=5.0)
    stillness.look("forward", 0.0)
    stillness.look("forward", 86_400.0)
    assert stillness.still_s == 5.0
