"""Boundary rows that are kept, so that a stage that is lost can be given them again. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from gguf_worker._schema import Buffer
from gguf_worker.generation.history import Piece


class RowBudget:
    """Bytes of boundary rows that the sequences of a route keep together."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def take(self, count: int) -> bool:
        """Whether there was room for `count` bytes; it is taken then."""
        if self.used + count > self.limit:
            return False
        self.used += count
        return True

    def give(self, count: int) -> None:
        """They are free again."""
        self.used -= count


class BoundaryRows:
    """Rows between two stages, by the first row of the piece that they belong to.

    While `is_kept`, all of them stay, within the budget. Afterwards only those stay that the stage behind has
    not computed yet; they are few, because no stage runs far ahead of the next one.
    """

    def __init__(self, budget: RowBudget) -> None:
        self.is_kept = True
        self._budget = budget
        self._rows: dict[int, Buffer] = {}
        self._taken = 0

    def get(self, piece: Piece) -> Buffer | None:
        """The rows of a piece, those included that were forgotten since; None where they are not here."""
        return self._rows.get(piece.start)

    def put(self, piece: Piece, rows: Buffer) -> None:
        """Takes the rows of a piece. Where they are kept, room for them must have been taken."""
        self._rows[piece.start] = rows
        if self.is_kept:
            self._taken += len(rows)

    def consumed(self, piece: Piece) -> None:
        """The stage behind has computed them."""
        if not self.is_kept:
            self._rows.pop(piece.start, None)

    def stop_keeping(self, consumed: int) -> None:
        """From now on only rows from `consumed` on stay, until the stage behind has computed them."""
        self.is_kept = False
        self._rows = {start: rows for start, rows in self._rows.items() if start >= consumed}
        self._give_back(self._taken)

    def trim(self, position: int) -> None:
        """Drops the pieces that start at `position` or behind it. At 0 nothing is left that would be worth
        less than what comes, so everything is kept again."""
        gone = [start for start in self._rows if start >= position]
        count = sum(len(self._rows.pop(start)) for start in gone)
        if self.is_kept:
            self._give_back(count)
        self.is_kept = self.is_kept or position == 0

    def fork(self, position: int) -> BoundaryRows:
        """The same rows up to `position`, kept as these are where there is room for them once more."""
        fork = BoundaryRows(self._budget)
        fork._rows = {start: rows for start, rows in self._rows.items() if start < position}
        count = sum(map(len, fork._rows.values()))
        if self.is_kept and self._budget.take(count):
            fork._taken = count
        else:
            fork.is_kept = False
            fork._rows.clear()
        return fork

    def merge(self, groups: Sequence[Sequence[Piece]]) -> None:
        """Joins rows as `History.merge` joined their pieces; what is not whole any more is dropped."""
        for group in groups:
            parts = [_kept(piece, self._rows.pop(piece.start, None)) for piece in group]
            whole = [part for part in parts if part is not None]
            if len(whole) == len(parts):
                self._rows[group[0].start] = whole[0] if len(whole) == 1 else b"".join(whole)
        if self.is_kept:
            self._give_back(self._taken - sum(map(len, self._rows.values())))

    def clear(self) -> None:
        """Gives everything back; nothing is kept any more."""
        self.is_kept = False
        self._rows.clear()
        self._give_back(self._taken)

    def _give_back(self, count: int) -> None:
        self._taken -= count
        self._budget.give(count)


def _kept(piece: Piece, rows: Buffer | None) -> Buffer | None:
    """Without the rows that were forgotten."""
    if rows is None or piece.is_whole:
        return rows
    return memoryview(rows).cast("B")[: len(rows) // len(piece.tokens) * piece.kept]


def least_useful(kept: Sequence[bool]) -> int:
    """Which of the boundaries that are kept (one flag each, the first one behind the first stage) to give up:
    the one without which the fewest stages have to compute again for one that is lost. At least one is kept.

    Rows that are not kept are computed again from the nearest ones that are, or from the tokens.
    """
    places = [-1, *(index for index, is_kept in enumerate(kept) if is_kept), len(kept)]
    spans = {places[i]: places[i + 1] - places[i - 1] for i in range(1, len(places) - 1)}
    return min(reversed(spans), key=spans.__getitem__)
