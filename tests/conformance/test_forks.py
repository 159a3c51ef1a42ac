"""Forks: a session that begins with rows of another one, without computing them again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.chains import open_chain
from conformance.inputs import input_rows
from conformance.shard import SMALL, OpenShard, ShardError, Subject
from shard_engine import Recipe, Sampling

SHARED = SMALL
APART = replace(SMALL, kv_unified=False)
BOTH = pytest.mark.parametrize("recipe", [SHARED, APART], ids=["shared", "apart"])


@BOTH
@pytest.mark.parametrize("layers", [(0, 6), (0, 3), (3, 6)], ids=str)
def test_fork_equals_a_fresh_prefill(
    subject: Subject, open_shard: OpenShard, recipe: Recipe, layers: tuple[int, int]
) -> None:
    """Wherever it was forked, a session computes the bits of one that was given all its rows itself."""
    shard = open_shard(subject, layers=layers, recipe=recipe)
    output = "logits_all" if layers[1] == subject.model.n_layer else "hidden"
    rows = input_rows(subject, open_shard, layers)
    source = shard.open_session()
    whole = shard.forward(source, 0, output=output, **rows(0, 12))
    width = len(whole.values) // 12
    for position in (0, 1, 7, 11):
        fork = shard.fork(source, position).session
        rest = shard.forward(fork, position, output=output, **rows(position, 12))
        assert rest.values == whole.values[position * width :]
        shard.close_session(fork)
    at_end = shard.fork(source, 12).session
    following = [
        shard.forward(session, 12, output=output, **rows(0, 1)).values for session in (source, at_end)
    ]
    assert following[0] == following[1]


@BOTH
def test_fork_and_source_go_their_own_ways(subject: Subject, open_shard: OpenShard, recipe: Recipe) -> None:
    """What either does after the fork, below its position as well, cannot be seen by the other."""
    chain = open_chain(open_shard, subject, (), recipe=recipe)
    shard = chain.shards[0]
    one, two, three = (list(prompt) for prompt in subject.model.prompts)

    def alone(tokens: list[int]) -> bytes:
        session = shard.open_session()
        values = shard.forward(session, 0, tokens=tokens, output="logits").values
        shard.close_session(session)
        return values

    expected_source = alone([*one[:3], *two])
    expected_fork = alone([*one[:2], *three])
    expected_second = alone([*one[:6], *two[:2]])
    source = shard.open_session()
    shard.forward(source, 0, tokens=one[:10])
    fork = shard.fork(source, 6).session
    second = shard.fork(fork, 6).session
    shard.forward(fork, 6, tokens=three[:4])
    shard.trim(source, 3)
    shard.trim(fork, 2)
    assert shard.forward(source, 3, tokens=two, output="logits").values == expected_source
    assert shard.forward(fork, 2, tokens=three, output="logits").values == expected_fork
    shard.close_session(source)
    shard.close_session(fork)
    assert shard.forward(second, 6, tokens=two[:2], output="logits").values == expected_second


def test_fork_shares_cells_until_the_last_lets_go(subject: Subject, open_shard: OpenShard) -> None:
    """With kv_unified a row that sessions have in common is one cell, freed by the last that holds it."""
    shard = open_shard(subject, recipe=SHARED)
    source = shard.open_session()
    shard.forward(source, 0, tokens=[5, 6, 7, 8, 9, 10, 11])
    fork = shard.fork(source, 5)
    assert (fork.kv_cells_taken, shard.kv_cells_used()) == (0, 7)
    assert shard.forward(fork.session, 5, tokens=[20, 21, 22]).kv_cells == 3
    assert shard.kv_cells_used() == 10
    assert shard.trim(fork.session, 4) == 3, "row 4 is the source's too"
    assert shard.trim(source, 6) == 1
    assert shard.close_session(source) == 2, "rows 0 to 3 are the fork's too"
    assert shard.kv_cells_used() == 4
    again = shard.fork(fork.session, 4)
    assert shard.close_session(fork.session) == 0
    assert shard.close_session(again.session) == 4
    assert shard.kv_cells_used() == 0


def test_fork_copies_cells_of_sessions_apart(subject: Subject, open_shard: OpenShard) -> None:
    """Without kv_unified a fork takes a cell for each of its rows, and frees as many."""
    shard = open_shard(subject, recipe=APART)
    source = shard.open_session()
    shard.forward(source, 0, tokens=[5, 6, 7, 8, 9, 10, 11])
    fork = shard.fork(source, 5)
    assert (fork.kv_cells_taken, shard.kv_cells_used()) == (5, 12)
    assert shard.trim(fork.session, 4) == 1
    assert shard.close_session(source) == 7
    assert shard.close_session(fork.session) == 4
    assert shard.kv_cells_used() == 0


@BOTH
def test_fork_needs_no_free_cell_of_others(subject: Subject, open_shard: OpenShard, recipe: Recipe) -> None:
    """A full session can be forked; a row more is then refused before anything is computed, with figures."""
    shard = open_shard(subject, recipe=recipe)
    source = shard.open_session()
    for position in range(0, SMALL.n_ctx, SMALL.n_batch):
        shard.forward(source, position, tokens=[5 + i for i in range(SMALL.n_batch)])
    fork = shard.fork(source, SMALL.n_ctx).session
    used, progress = shard.kv_cells_used(), shard.progress()
    with pytest.raises(ShardError) as caught:
        shard.forward(fork, SMALL.n_ctx, tokens=[5])
    assert caught.value.code == "capacity"
    assert (caught.value.fields["needed"], caught.value.fields["available"]) == ("1", "0")
    assert (shard.kv_cells_used(), shard.progress()) == (used, progress)


@BOTH
def test_fork_that_cannot_be_made_changes_nothing(
    subject: Subject, open_shard: OpenShard, recipe: Recipe
) -> None:
    """An unknown source, a position past its end and a missing session are told apart; no session is lost."""
    shard = open_shard(subject, recipe=recipe, max_sessions=2)
    source = shard.open_session()
    shard.forward(source, 0, tokens=[5, 6, 7])
    with pytest.raises(ShardError) as caught:
        shard.fork(99, 0)
    assert (caught.value.code, caught.value.fields["session"]) == ("no_session", "99")
    with pytest.raises(ShardError) as caught:
        shard.fork(source, 4)
    assert caught.value.code == "position"
    assert (caught.value.fields["expected"], caught.value.fields["actual"]) == ("3", "4")
    with pytest.raises(ShardError) as caught:
        shard.fork(source, 2, Sampling(logit_bias=[(shard.description.n_vocab, 1.0)]))
    assert caught.value.code == "argument"
    fork = shard.fork(source, 2).session
    used = shard.kv_cells_used()
    with pytest.raises(ShardError) as caught:
        shard.fork(source, 1)
    assert caught.value.code == "capacity"
    assert (caught.value.fields["needed"], caught.value.fields["available"]) == ("3", "2")
    assert shard.kv_cells_used() == used
    shard.close_session(fork)
    assert shard.forward(shard.fork(source, 3).session, 3, tokens=[8]).length == 4
