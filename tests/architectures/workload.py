"""What every variant computes, unsplit and cut: the same rows in the same steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from reference import Feed, Settings
from shard_engine import Recipe

SETTINGS = Settings(n_ctx=256, n_batch=128, n_ubatch=16, max_sessions=4, threads=1)
"""Fewer rows are computed at once than a prefill has, so that it is split."""

_DECODE_STEPS = 6
_FIRST_TOKEN, _LAST_TOKEN = 3, 315
"""The special tokens of the toy vocabulary come before these."""


def prefill_chunk(window: int) -> int:
    """Most rows of one session in a step: where layers have a window, no more than are computed at once."""
    return SETTINGS.n_ubatch if window else 3 * SETTINGS.n_ubatch


def recipe(chunk: int) -> Recipe:
    """How a chain executes what the reference does with SETTINGS."""
    return Recipe(
        n_ctx=SETTINGS.n_ctx,
        n_batch=SETTINGS.n_batch,
        n_ubatch=SETTINGS.n_ubatch,
        prefill_chunk=chunk,
        n_threads=SETTINGS.threads,
    )


class Decoder(Protocol):
    """A model that computes steps of several sessions."""

    def forward_together(self, feeds: Sequence[Feed]) -> Sequence[bytes]:
        """Logits of every row of each feed."""
        ...


def steps(chunk: int) -> Iterator[list[Feed]]:
    """A prefill longer than what is computed at once and than a window, decode, then other sessions too.

    A step has at most `chunk` rows of a session.
    """
    lengths = [0, 0, 0, 0]

    def feed(session: int, n_rows: int) -> Feed:
        position = lengths[session]
        lengths[session] += n_rows
        return Feed(session=session, position=position, tokens=_tokens(session, position, n_rows))

    def in_chunks(n_rows: dict[int, int]) -> Iterator[list[Feed]]:
        while n_rows:
            yield [feed(session, min(chunk, left)) for session, left in n_rows.items()]
            n_rows = {session: left - chunk for session, left in n_rows.items() if left > chunk}

    every_session = dict.fromkeys(range(4), 1)
    yield from in_chunks({0: 40})
    for _ in range(_DECODE_STEPS):
        yield from in_chunks({0: 1})
    yield from in_chunks({1: 21, 2: 9, 3: 33})
    yield from in_chunks(every_session)
    yield from in_chunks({0: 1, 1: 1, 2: 12, 3: 1})
    yield from in_chunks(every_session)


def _tokens(session: int, position: int, n_rows: int) -> list[int]:
    """Ids that look random and never repeat a pattern."""
    n_ids = _LAST_TOKEN - _FIRST_TOKEN
    return [
        _FIRST_TOKEN + (session * 97 + at * at * 7 + at * 31) % n_ids
        for at in range(position, position + n_rows)
    ]


def run(decoder: Decoder, chunk: int) -> list[bytes]:
    """Logits of every row, one item per feed."""
    return [rows for feeds in steps(chunk) for rows in decoder.forward_together(feeds)]
