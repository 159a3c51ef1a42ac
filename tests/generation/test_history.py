"""What is kept of a sequence for stages that are lost: pieces, rows within a budget, and losses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_worker.errors import StageLost
from gguf_worker.generation.history import History, Piece
from gguf_worker.generation.replay import Loss, Losses, Replay, ReplaySettings
from gguf_worker.generation.rows import BoundaryRows, RowBudget, least_useful

SIZES = st.lists(st.integers(1, 12), min_size=1, max_size=12)


def history_of(sizes: list[int]) -> History:
    """Pieces of these sizes, of tokens that count up."""
    history = History()
    for size in sizes:
        history.add(range(history.position, history.position + size))
    return history


def pieces_of(history: History) -> list[tuple[int, int, int]]:
    """Start, rows computed and rows kept of each piece."""
    return [(piece.start, len(piece.tokens), piece.kept) for piece in history]


@given(sizes=SIZES, cuts=st.lists(st.integers(0, 144), max_size=4))
def test_history_keeps_the_pieces_of_what_was_kept(sizes: list[int], cuts: list[int]) -> None:
    """After any trims, with more added behind them: tokens and pieces follow each other without a gap, and a
    piece that was cut knows all that it was computed with."""
    history = history_of(sizes)
    tokens = list(range(sum(sizes)))
    for cut in cuts:
        position = min(cut, history.position)
        history.trim(position)
        assert all(piece.tokens[0] == tokens[piece.start] for piece in history)
        del tokens[position:]
        history.add([99, 98])
        tokens += [99, 98]
        assert list(history.tokens) == tokens
        assert history.position == len(tokens)
        ends = [0, *(piece.end for piece in history)]
        assert [piece.start for piece in history] == ends[:-1]
        assert all(history.at(piece.start) is piece for piece in history)


def test_trim_inside_a_piece_keeps_what_it_was_computed_with() -> None:
    """The rest of it is computed again with the others, and forgotten again."""
    history = history_of([8, 8, 1])
    history.trim(11)
    assert pieces_of(history) == [(0, 8, 8), (8, 8, 3)]
    fork = history.fork(10)
    history.add([5])
    assert pieces_of(history) == [(0, 8, 8), (8, 8, 3), (11, 1, 1)]
    assert pieces_of(fork) == [(0, 8, 8), (8, 8, 2)]
    assert fork.position == 10


@given(sizes=SIZES, cut=st.integers(0, 144), end=st.integers(0, 144), most=st.integers(12, 40))
def test_merge_changes_no_token(sizes: list[int], cut: int, end: int, most: int) -> None:
    """Fewer pieces of at most `most` rows; what ends behind `end` stays as it is."""
    history = history_of(sizes)
    history.trim(min(cut, history.position))
    before, tokens = pieces_of(history), history.tokens
    groups = history.merge(end, most)
    after = pieces_of(history)
    assert history.tokens == tokens
    assert [piece for piece in before if piece[0] + piece[2] > end] == after[len(groups) :]
    assert all(rows == kept <= most for _, rows, kept in after[: len(groups)])
    assert len(groups) <= len(before)
    assert [start for start, *_ in after[: len(groups)]] == [group[0].start for group in groups]


def test_rows_are_kept_within_the_budget_and_given_back() -> None:
    """What is taken of a budget is what is kept, through every change."""
    history, budget = history_of([4, 4, 2]), RowBudget(100)
    rows = BoundaryRows(budget)
    for piece in history:
        count = 8 * len(piece.tokens)
        assert budget.take(count)
        rows.put(piece, bytes([piece.start]) * count)
        rows.consumed(piece)
    assert (budget.used, budget.take(21)) == (80, False)
    history.trim(6)
    rows.trim(6)
    assert budget.used == 64
    fork = rows.fork(6)
    assert not fork.is_kept
    rows.merge(history.merge(6, 100))
    assert rows.get(history.at(0)) == bytes(32) + bytes([4]) * 16
    assert budget.used == 48
    again = rows.fork(6)
    assert (again.is_kept, budget.used) == (True, 96)
    again.clear()
    rows.stop_keeping(6)
    assert (budget.used, rows.get(history.at(0))) == (0, None)
    rows.trim(0)
    assert rows.is_kept


def test_rows_that_are_not_kept_wait_for_the_stage_behind() -> None:
    """They are gone once it has computed them."""
    history, rows = history_of([4, 4]), BoundaryRows(RowBudget(0))
    rows.stop_keeping(0)
    first, second = history
    rows.put(first, b"first")
    rows.put(second, b"second")
    rows.consumed(first)
    assert [rows.get(piece) for piece in history] == [None, b"second"]


def test_rows_of_a_piece_that_is_not_whole_are_dropped_in_a_merge() -> None:
    """Half of a merged piece is of no use."""
    history, rows = history_of([4, 4]), BoundaryRows(RowBudget(0))
    rows.stop_keeping(0)
    rows.put(history.at(4), b"second")
    rows.merge(history.merge(8, 100))
    assert rows.get(Piece(start=0, tokens=(), kept=0)) is None
    assert rows.get(Piece(start=4, tokens=(), kept=0)) is None


def test_least_useful_boundary_leaves_short_ways() -> None:
    """Given up one by one, what is kept stays spread over the stages."""
    kept = [True] * 7
    order = []
    while any(kept):
        index = least_useful(kept)
        kept[index] = False
        order.append(index)
    assert order[0] == 6
    assert sorted(order) == list(range(7))
    assert order[-1] in (2, 3, 4)


def test_limit_counts_losses_within_its_window() -> None:
    """Old losses do not count; too many are all named, and the last one's fields stay."""
    losses = Losses(ReplaySettings(max_losses=2, window_s=10))
    for at in (0, 8, 9):
        losses.add(Loss(at=at, label=f"stage {at}", error=StageLost("it is gone", fields={"node": "a"})))
    losses.check(10)
    losses.add(Loss(at=11, label="stage 11", error=StageLost("it is gone", fields={"node": "b"})))
    with pytest.raises(StageLost) as caught:
        losses.check(12)
    assert caught.value.message == (
        "3 stages were lost within 10 s, more than the 2 that a sequence outlives: "
        "stage 8: it is gone; stage 9: it is gone; stage 11: it is gone"
    )
    assert caught.value.fields == {"node": "b", "losses": "3"}
    losses.check(19)


def test_without_any_limit_the_loss_itself_is_told() -> None:
    """Nothing is said of a limit where nothing was to be brought back."""
    losses, error = Losses(ReplaySettings(max_losses=0)), StageLost("it is gone")
    losses.check(0)
    losses.add(Loss(at=1, label="stage", error=error))
    with pytest.raises(StageLost) as caught:
        losses.check(1)
    assert caught.value is error


@pytest.mark.parametrize("name", ["memory_bytes", "max_losses", "window_s", "wait_s"])
def test_settings_are_checked(name: str) -> None:
    """A negative setting is refused by its name."""
    with pytest.raises(ValueError, match=f"ReplaySettings.{name} is -1"):
        ReplaySettings(**{name: -1})
    assert Replay().budget.limit == ReplaySettings().memory_bytes
