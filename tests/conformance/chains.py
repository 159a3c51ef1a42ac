"""Shards in a row, as one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from conformance.shard import Answer, OpenShard, Rows, Shard, ShardError, Subject


def all_answers(outcomes: Sequence[Answer | ShardError]) -> list[Answer]:
    """The answers; raises the first error there is."""
    for outcome in outcomes:
        if isinstance(outcome, ShardError):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, Answer)]


@dataclass(frozen=True, slots=True)
class Feed:
    """Tokens of one session on their way through a chain."""

    sessions: tuple[int, ...]
    """The session's id in each shard."""
    position: int
    tokens: Sequence[int]


@dataclass(frozen=True, slots=True)
class Chain:
    """Open shards that cover all layers."""

    shards: tuple[Shard, ...]

    def open_session(self) -> tuple[int, ...]:
        return tuple(shard.open_session() for shard in self.shards)

    def forward_many(self, feeds: Sequence[Feed], output: str) -> list[Answer]:
        """Every feed through every shard; all feeds share a step in each."""
        hidden: list[bytes | None] = [None] * len(feeds)
        for index, shard in enumerate(self.shards):
            last = index == len(self.shards) - 1
            rows = [
                Rows(
                    session=feed.sessions[index],
                    position=feed.position,
                    tokens=feed.tokens if values is None else None,
                    hidden=values,
                    output=output if last else "hidden",
                )
                for feed, values in zip(feeds, hidden, strict=True)
            ]
            answers = all_answers(shard.forward_many(rows))
            hidden = [answer.values for answer in answers]
        return answers

    def forward(self, sessions: tuple[int, ...], position: int, tokens: Sequence[int], output: str) -> Answer:
        (answer,) = self.forward_many([Feed(sessions, position, tokens)], output)
        return answer


def open_chain(open_shard: OpenShard, subject: Subject, cuts: Sequence[int]) -> Chain:
    """The subject's model, cut at `cuts`."""
    ranges = pairwise((0, *cuts, subject.model.n_layer))
    return Chain(tuple(open_shard(subject, layers=layers) for layers in ranges))
