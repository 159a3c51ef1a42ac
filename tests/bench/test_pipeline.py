"""What limits stages that compute at the same time."""

from __future__ import annotations

import pytest

from kit.pipeline import Stage, at_once, best_cut, ideal, ideal_of


def stage(start: int, end: int, compute_s: float) -> Stage:
    return Stage(layers=(start, end), compute_s=compute_s)


def test_the_slowest_stage_is_the_limit() -> None:
    assert ideal([stage(0, 8, 2.0), stage(8, 16, 2.0)]) == 2.0
    assert ideal([stage(0, 12, 3.0), stage(12, 16, 1.0)]) == pytest.approx(4 / 3)
    assert ideal([stage(0, 16, 5.0)]) == 1.0


def test_few_pieces_leave_stages_without_work_at_both_ends() -> None:
    """One piece is in one stage at a time; of two, the first and the last third are."""
    even = [stage(0, 8, 2.0), stage(8, 16, 2.0)]
    assert ideal_of(even, 1) == pytest.approx(1.0)
    assert ideal_of(even, 2) == pytest.approx(4 / 3)
    assert ideal_of(even, 1_000_000) == pytest.approx(2.0, abs=1e-3)


@pytest.mark.parametrize(
    ("first_s", "last_s", "cut"),
    [(8.0, 8.0, 8), (8.0, 12.0, 10), (8.0, 20.0, 14), (8.0, 100.0, 15), (12.0, 4.0, 8)],
    ids=["even", "a head", "a larger head", "a head like a model", "no head"],
)
def test_the_best_cut_gives_both_stages_the_same_time(first_s: float, last_s: float, cut: int) -> None:
    """Of 16 layers; what the last stage takes beyond its layers is the head's."""
    end = 12 if (first_s, last_s) == (12.0, 4.0) else 8
    assert best_cut(stage(0, end, first_s), stage(end, 16, last_s)) == cut


def test_how_much_stages_computed_at_the_same_time() -> None:
    assert at_once({"layers 0:8": 2.0, "layers 8:16": 2.0}, 4.0) == 1.0
    assert at_once({"layers 0:8": 2.0, "layers 8:16": 2.0}, 2.0) == 2.0
