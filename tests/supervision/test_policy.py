"""The restart policy, under a clock and dice of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_worker import RestartPolicy
from gguf_worker.supervision.policy import Failure, GiveUp, Restart, RestartHistory

MIDDLE = 0.5
"""The throw that lengthens and shortens nothing."""

policies = st.builds(
    RestartPolicy,
    max_restarts=st.integers(0, 12),
    window_s=st.floats(0, 1000),
    backoff_initial_s=st.floats(0, 10),
    backoff_factor=st.floats(1, 10),
    backoff_max_s=st.floats(0, 100),
    jitter=st.floats(0, 1),
    stable_after_s=st.floats(0, 1000),
)
chances = st.floats(0, 1, exclude_max=True)


def dice(*throws: float) -> Callable[[], float]:
    """Gives these numbers in turn, and the middle ever after."""
    rest: Iterator[float] = iter((*throws, *repeat(MIDDLE, 1000)))
    return lambda: next(rest)


def crash(at: float, *, ready_for_s: float = 0.0, cause: str = "signal_other SIGSEGV") -> Failure:
    return Failure(at=at, cause=cause, ready_for_s=ready_for_s)


@given(policy=policies, throws=st.lists(chances, max_size=12), crash_after_s=st.floats(0, 1e6))
def test_crash_loop_is_given_up_after_exactly_n_restarts_and_says_why(
    policy: RestartPolicy, throws: list[float], crash_after_s: float
) -> None:
    """However long each attempt takes and whatever the dice say: N restarts, then the reason with the
    causes."""
    history, roll, now, restarts = RestartHistory(policy), dice(*throws), 0.0, 0
    while isinstance(decision := history.decide(crash(now), roll), Restart):
        restarts += 1
        assert restarts <= policy.max_restarts
        now += decision.delay_s + crash_after_s
    assert restarts == policy.max_restarts
    assert len(decision.causes) == restarts + 1
    assert "signal_other SIGSEGV" in decision.reason
    if restarts:
        assert f"{restarts} restart" in decision.reason


@given(policy=policies, chance=chances, in_a_row=st.integers(0, 50))
def test_backoff_stays_within_its_bounds(policy: RestartPolicy, chance: float, in_a_row: int) -> None:
    """No wait is negative, none is longer than the longest one with its jitter."""
    wait = policy.backoff_s(in_a_row, chance)
    assert 0 <= wait <= policy.backoff_max_s * (1 + policy.jitter)
    before_jitter = policy.backoff_s(in_a_row, MIDDLE)
    assert abs(wait - before_jitter) <= before_jitter * policy.jitter + 1e-9


@given(policy=policies, gaps=st.lists(st.floats(0, 500), max_size=60))
def test_no_window_ever_has_more_than_n_restarts(policy: RestartPolicy, gaps: list[float]) -> None:
    """Whatever the deaths and however stable the runs between them were."""
    history, roll, now, restarts = RestartHistory(policy), dice(), 0.0, []
    for gap in gaps:
        now += gap
        decision = history.decide(crash(now, ready_for_s=gap), roll)
        if isinstance(decision, Restart):
            now += decision.delay_s
            restarts.append(now)
    for end in restarts:
        assert sum(end - policy.window_s < start <= end for start in restarts) <= policy.max_restarts


def test_backoff_grows_and_begins_anew_behind_a_stable_run() -> None:
    """Each unstable restart waits longer than the last, up to a limit; a run that was stable resets it."""
    policy = RestartPolicy(
        max_restarts=10, backoff_initial_s=1, backoff_factor=3, backoff_max_s=20, jitter=0, stable_after_s=60
    )
    history, roll = RestartHistory(policy), dice()
    waits = []
    for ready_for_s in (0, 5, 59.9, 0, 60, 0):
        decision = history.decide(crash(0, ready_for_s=ready_for_s), roll)
        assert isinstance(decision, Restart)
        waits.append(decision.delay_s)
    assert waits == [1, 3, 9, 20, 1, 3]


def test_jitter_moves_the_wait_both_ways() -> None:
    """The dice decide, within the part that the policy allows."""
    policy = RestartPolicy(backoff_initial_s=10, jitter=0.25)
    assert [policy.backoff_s(0, chance) for chance in (0.0, 0.5, 0.75)] == [7.5, 10.0, 11.25]


def test_stable_deaths_are_given_up_only_within_the_window() -> None:
    """A worker that dies once a day is started again for ever; one that dies each minute is not."""
    policy = RestartPolicy(max_restarts=3, window_s=600, stable_after_s=60)
    daily, often, roll = RestartHistory(policy), RestartHistory(policy), dice()
    assert all(
        isinstance(daily.decide(crash(day * 86_400.0, ready_for_s=86_000), roll), Restart)
        for day in range(30)
    )
    decisions = [often.decide(crash(minute * 61.0, ready_for_s=60.5), roll) for minute in range(4)]
    assert [isinstance(decision, Restart) for decision in decisions] == [True, True, True, False]
    assert isinstance(decisions[-1], GiveUp)
    assert "3 restarts within 600 s" in decisions[-1].reason


def test_slow_crash_loop_is_given_up_although_it_outlasts_the_window() -> None:
    """A worker that takes longer than the window to crash is not tried for ever."""
    policy = RestartPolicy(max_restarts=2, window_s=100)
    history, roll = RestartHistory(policy), dice()
    decisions = [history.decide(crash(attempt * 1000.0), roll) for attempt in range(3)]
    assert [isinstance(decision, Restart) for decision in decisions] == [True, True, False]
    assert isinstance(decisions[-1], GiveUp)
    assert "2 restarts in a row without a stable run" in decisions[-1].reason


def test_what_cannot_get_better_is_never_tried_again() -> None:
    """A rejected load, a wrong identity, a missing executable: the first is the last."""
    history = RestartHistory(RestartPolicy(max_restarts=10))
    decision = history.decide(Failure(at=0, cause="load_rejected", may_retry=False), dice())
    assert isinstance(decision, GiveUp)
    assert decision.reason == "load_rejected: another attempt would meet the same"
    assert decision.causes == ("load_rejected",)


def test_reset_forgets_everything() -> None:
    """Whoever mended the cause gets all restarts again, with the shortest wait."""
    policy = RestartPolicy(max_restarts=2, backoff_initial_s=1, jitter=0)
    history, roll = RestartHistory(policy), dice()
    while isinstance(history.decide(crash(0), roll), Restart):
        pass
    history.reset()
    decision = history.decide(crash(0, cause="hang"), roll)
    assert decision == Restart(delay_s=1, number=1)
    history.decide(crash(0, cause="hang"), roll)
    last = history.decide(crash(0), roll)
    assert isinstance(last, GiveUp)
    assert last.causes == ("hang", "hang", "signal_other SIGSEGV")
    assert "hang (2 times), signal_other SIGSEGV" in last.reason


def test_never_gives_up_at_the_first_death_with_nothing_but_its_cause() -> None:
    """Without restarts there is nothing to count."""
    decision = RestartHistory(RestartPolicy.never()).decide(crash(0), dice())
    assert decision == GiveUp(reason="signal_other SIGSEGV", causes=("signal_other SIGSEGV",))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_restarts", -1),
        ("window_s", -0.1),
        ("backoff_initial_s", float("nan")),
        ("backoff_factor", 0.5),
        ("backoff_factor", float("inf")),
        ("backoff_max_s", -1),
        ("backoff_max_s", float("inf")),
        ("jitter", 1.5),
        ("stable_after_s", -1),
    ],
)
def test_policy_that_makes_no_sense_is_refused(field: str, value: float) -> None:
    """The field is named."""
    with pytest.raises(ValueError, match=f"RestartPolicy.{field} is"):
        RestartPolicy(**{field: value})  # type: ignore[arg-type]
