"""One step of many entries, which only an engine in process can be given exactly."""

from __future__ import annotations

import pytest

from conformance.in_process import InProcessShard
from conformance.shard import SMALL, Answer, OpenShard, Rows, ShardError, Subject
from shard_engine import Entry


def codes(outcomes: list[Answer | ShardError]) -> list[str]:
    return [outcome.code if isinstance(outcome, ShardError) else "ok" for outcome in outcomes]


def test_step_with_more_rows_than_a_batch_is_refused(
    in_process_subject: Subject, open_shard: OpenShard
) -> None:
    """Entries fill the batch in order; the one that does not fit is refused with both figures."""
    shard = open_shard(in_process_subject)
    one, other, third = (shard.open_session() for _ in range(3))
    outcomes = shard.forward_many(
        [
            Rows(session=one, position=0, tokens=[5] * 20),
            Rows(session=other, position=0, tokens=[6] * 13),
            Rows(session=third, position=0, tokens=[7] * 12),
        ]
    )
    assert codes(outcomes) == ["ok", "capacity", "ok"]
    refused = outcomes[1]
    assert isinstance(refused, ShardError)
    assert (refused.fields["needed"], refused.fields["available"]) == ("13", "12")
    assert shard.kv_cells_used() == SMALL.n_batch
    with pytest.raises(ShardError, match="33 batch rows"):
        shard.forward(other, 0, tokens=[6] * 33)


def test_step_with_more_rows_than_free_cells_is_refused(
    in_process_subject: Subject, open_shard: OpenShard
) -> None:
    """Entries take the free cells in order; the one that does not fit is refused with both figures."""
    shard = open_shard(in_process_subject)
    large, one, other = (shard.open_session() for _ in range(3))
    for position in range(0, 250, 25):
        shard.forward(large, position, tokens=[5] * 25)
    outcomes = shard.forward_many(
        [
            Rows(session=one, position=0, tokens=[6] * 4),
            Rows(session=other, position=0, tokens=[7] * 3),
        ]
    )
    assert codes(outcomes) == ["ok", "capacity"]
    refused = outcomes[1]
    assert isinstance(refused, ShardError)
    assert (refused.fields["needed"], refused.fields["available"]) == ("3", "2")
    assert shard.kv_cells_used() == 254


def test_step_with_a_session_twice_refuses_the_second(
    in_process_subject: Subject, open_shard: OpenShard
) -> None:
    """A session may be in a step once."""
    shard = open_shard(in_process_subject)
    session = shard.open_session()
    outcomes = shard.forward_many(
        [
            Rows(session=session, position=0, tokens=[5, 6]),
            Rows(session=session, position=2, tokens=[7]),
        ]
    )
    assert codes(outcomes) == ["ok", "argument"]
    assert shard.kv_cells_used() == 2


def test_step_entry_without_rows_or_with_both_inputs_is_refused(
    in_process_subject: Subject, open_shard: OpenShard
) -> None:
    """An entry has at least one row, and tokens or hidden rows, not both and not neither."""
    shard = open_shard(in_process_subject)
    sessions = [shard.open_session() for _ in range(3)]
    row = bytes(4 * shard.description.n_embd)
    outcomes = shard.forward_many(
        [
            Rows(session=sessions[0], position=0, tokens=[]),
            Rows(session=sessions[1], position=0, tokens=[5], hidden=row),
            Rows(session=sessions[2], position=0),
        ]
    )
    assert codes(outcomes) == ["argument"] * 3
    assert shard.kv_cells_used() == 0


def test_step_of_no_entries_does_nothing(in_process_subject: Subject, open_shard: OpenShard) -> None:
    """An empty step is fine."""
    shard = open_shard(in_process_subject)
    assert shard.forward_many([]) == []


def test_step_entry_that_fails_says_the_session_length(
    in_process_subject: Subject, open_shard: OpenShard
) -> None:
    """Every entry says how long its session is afterwards, a refused one as well."""
    shard = open_shard(in_process_subject)
    assert isinstance(shard, InProcessShard)
    session = shard.open_session()
    shard.forward(session, 0, tokens=[5, 6, 7])
    (result,) = shard.engine.step([Entry(session=session, position=9, tokens=[5])])
    assert result.error is not None
    assert (result.length, result.kv_cells_taken, result.rows, result.token) == (3, 0, None, None)
