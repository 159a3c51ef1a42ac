"""Shards in a row, as one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from conformance.shard import Answer, OpenShard, Rows, Shard, ShardError, Subject
from shard_engine import Sampling


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

    def open_session(self, sampling: Sampling | None = None) -> tuple[int, ...]:
        """A session in every shard; the last one draws."""
        *before, last = self.shards
        return (*(shard.open_session() for shard in before), last.open_session(sampling))

    def fork(
        self, sessions: tuple[int, ...], position: int, sampling: Sampling | None = None
    ) -> tuple[int, ...]:
        """A session in every shard that begins with the first `position` rows of another."""
        *before, last = zip(self.shards, sessions, strict=True)
        forks = [shard.fork(session, position) for shard, session in before]
        forks.append(last[0].fork(last[1], position, sampling))
        return tuple(fork.session for fork in forks)

    def close_session(self, sessions: tuple[int, ...]) -> None:
        for shard, session in zip(self.shards, sessions, strict=True):
            shard.close_session(session)

    def forward_many(self, feeds: Sequence[Feed], output: str) -> list[Answer]:
        """Every feed through every shard; all feeds share a step in each. The last one is told the tokens."""
        hidden: list[bytes | None] = [None] * len(feeds)
        for index, shard in enumerate(self.shards):
            last = index == len(self.shards) - 1
            rows = [
                Rows(
                    session=feed.sessions[index],
                    position=feed.position,
                    tokens=feed.tokens if values is None or last else None,
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


def open_chain(open_shard: OpenShard, subject: Subject, cuts: Sequence[int], **changes: object) -> Chain:
    """The subject's model, cut at `cuts`; `changes` are fields of Options."""
    ranges = pairwise((0, *cuts, subject.model.n_layer))
    return Chain(tuple(open_shard(subject, layers=layers, **changes) for layers in ranges))


def draw_many(
    chain: Chain, sessions: tuple[int, ...], position: int, tokens: Sequence[int], count: int
) -> list[int]:
    """Gives a session `tokens` and then what it draws, until it drew `count` tokens."""
    drawn: list[int] = []
    while len(drawn) < count:
        token = chain.forward(sessions, position, tokens, "token").token
        assert token is not None
        drawn.append(token)
        position += len(tokens)
        tokens = [token]
    return drawn
