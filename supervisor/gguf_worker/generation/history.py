"""What a sequence is made of, and in which pieces it was computed. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(slots=True, kw_only=True)
class Piece:
    """Rows that one forward computes on every stage."""

    start: int
    """Of its first row in the sequence."""
    tokens: Sequence[int]
    """All that were computed together. What a row is computed with can change its bits, so the ones that were
    forgotten since stay here: they are computed again with the others, and forgotten again."""
    kept: int
    """Rows, from the first, that are still part of the sequence."""

    @property
    def end(self) -> int:
        """Where the next piece starts."""
        return self.start + self.kept

    @property
    def is_whole(self) -> bool:
        """Whether nothing of it was forgotten."""
        return self.kept == len(self.tokens)


class History:
    """The pieces of one sequence, one behind the other."""

    def __init__(self) -> None:
        self._pieces: dict[int, Piece] = {}
        self.position = 0
        """Rows of the sequence."""

    def __iter__(self) -> Iterator[Piece]:
        return iter(self._pieces.values())

    def at(self, row: int) -> Piece:
        """The piece that starts at a row."""
        return self._pieces[row]

    @property
    def tokens(self) -> tuple[int, ...]:
        """What the sequence is."""
        return tuple(token for piece in self for token in piece.tokens[: piece.kept])

    def add(self, tokens: Sequence[int]) -> Piece:
        """A new piece at the end."""
        start, count = self.position, len(tokens)
        piece = self._pieces[start] = Piece(start=start, tokens=tuple(tokens), kept=count)
        self.position = start + count
        return piece

    def trim(self, position: int) -> None:
        """Forgets every row from `position` on."""
        for piece in [piece for piece in self if piece.end > position or piece.start >= position]:
            if piece.start >= position:
                del self._pieces[piece.start]
            else:
                piece.kept = position - piece.start
        self.position = min(self.position, position)

    def fork(self, position: int) -> Self:
        """The same pieces up to `position`, apart from these."""
        fork = type(self)()
        for piece in self:
            if piece.start < position:
                kept = min(piece.kept, position - piece.start)
                fork._pieces[piece.start] = Piece(start=piece.start, tokens=piece.tokens, kept=kept)
        fork.position = min(self.position, position)
        return fork

    def merge(self, end: int, most: int) -> list[list[Piece]]:
        """Makes as few pieces as possible, of at most `most` rows each, of those that end at `end` or before.
        Only for models whose rows do not depend on what they are computed with. Gives the old pieces of each
        new one, in order."""
        old = [piece for piece in self if piece.end <= end]
        groups: list[list[Piece]] = []
        for piece in old:
            if groups and sum(one.kept for one in groups[-1]) + piece.kept <= most:
                groups[-1].append(piece)
            else:
                groups.append([piece])
        merged = {group[0].start: _joined(group) for group in groups}
        self._pieces = merged | {piece.start: piece for piece in self if piece.end > end}
        return groups


def _joined(pieces: Sequence[Piece]) -> Piece:
    tokens = tuple(token for piece in pieces for token in piece.tokens[: piece.kept])
    return Piece(start=pieces[0].start, tokens=tokens, kept=len(tokens))
