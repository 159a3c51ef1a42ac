"""Sessions: their KV cells are counted exactly, trimmed, replayed and given back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.chains import all_answers, open_chain
from conformance.inputs import input_rows
from conformance.shard import SMALL, OpenShard, Rows, Shard, ShardError, Subject


def fill(shard: Shard, session: int, start: int, end: int) -> None:
    """Gives a session of a first stage rows from `start` to `end`, in steps that fit."""
    for position in range(start, end, SMALL.n_batch):
        tokens = [3 + (i % 97) for i in range(position, min(end, position + SMALL.n_batch))]
        shard.forward(session, position, tokens=tokens)


def test_session_cells_are_counted(subject: Subject, open_shard: OpenShard) -> None:
    """Forwards, trims and closes report the cells that they take and free, and the total follows."""
    shard = open_shard(subject)
    one, other = shard.open_session(), shard.open_session()
    assert shard.kv_cells_used() == 0
    answer = shard.forward(one, 0, tokens=[5, 6, 7, 8, 9])
    assert (answer.length, answer.kv_cells) == (5, 5)
    answer = shard.forward(one, 5, tokens=[5])
    assert (answer.length, answer.kv_cells) == (6, 1)
    shard.forward(other, 0, tokens=[5, 6, 7])
    assert shard.kv_cells_used() == 9
    assert shard.trim(one, 4) == 2
    assert shard.trim(one, 4) == 0
    assert shard.kv_cells_used() == 7
    assert shard.close_session(one) == 4
    assert shard.kv_cells_used() == 3
    assert shard.close_session(other) == 3
    assert shard.kv_cells_used() == 0


@pytest.mark.parametrize("layers", [(0, 6), (0, 3), (3, 6)], ids=str)
def test_session_trim_and_replay_gives_the_same_bits(
    subject: Subject, open_shard: OpenShard, layers: tuple[int, int]
) -> None:
    """What was trimmed and sent again computes exactly as before, past the trim as well."""
    shard = open_shard(subject, layers=layers)
    output = "logits_all" if layers[1] == subject.model.n_layer else "hidden"
    rows = input_rows(subject, open_shard, layers)
    session = shard.open_session()
    first = shard.forward(session, 0, output=output, **rows(0, 10))
    rest = shard.forward(session, 10, output=output, **rows(10, 12))
    assert shard.trim(session, 4) == 8
    width = 4 * first.n_columns
    again = shard.forward(session, 4, output=output, **rows(4, 10))
    assert again.values == first.values[4 * width :]
    assert shard.forward(session, 10, output=output, **rows(10, 12)).values == rest.values


def test_session_trimmed_to_nothing_starts_anew(subject: Subject, open_shard: OpenShard) -> None:
    """A session trimmed to 0 is like a new one."""
    shard = open_shard(subject)
    session = shard.open_session()
    prompt = subject.model.prompts[1]
    first = shard.forward(session, 0, tokens=prompt, output="logits")
    assert shard.trim(session, 0) == len(prompt)
    assert shard.forward(session, 0, tokens=prompt, output="logits").values == first.values


def test_session_closed_leaves_nothing_behind(subject: Subject, open_shard: OpenShard) -> None:
    """A new session gives the bits of a first one after others were used, trimmed and closed."""
    shard = open_shard(subject)
    prompt = subject.model.prompts[2]
    first = shard.open_session()
    expected = shard.forward(first, 0, tokens=prompt, output="logits").values
    shard.close_session(first)
    for round_ in range(3):
        session = shard.open_session()
        fill(shard, session, 0, 40 + round_)
        shard.trim(session, 20)
        shard.close_session(session)
    session = shard.open_session()
    assert shard.forward(session, 0, tokens=prompt, output="logits").values == expected


def test_session_unknown_is_named(subject: Subject, open_shard: OpenShard) -> None:
    """Every call on a session that was never opened, or was closed, names it and changes nothing."""
    shard = open_shard(subject)
    open_one, closed = shard.open_session(), shard.open_session()
    shard.forward(open_one, 0, tokens=[5, 6])
    shard.close_session(closed)
    for session in (closed, 3):
        for call in (
            lambda: shard.forward(session, 0, tokens=[5]),  # noqa: B023 - called at once
            lambda: shard.trim(session, 0),  # noqa: B023
            lambda: shard.close_session(session),  # noqa: B023
        ):
            with pytest.raises(ShardError) as caught:
                call()
            assert caught.value.code == "no_session"
            assert str(session) in caught.value.message
            assert caught.value.fields["session"] == str(session)
    assert shard.kv_cells_used() == 2


@pytest.mark.parametrize(("position", "kind"), [(6, "gap"), (3, "overlap")])
def test_session_position_that_does_not_follow_is_named(
    subject: Subject, open_shard: OpenShard, position: int, kind: str
) -> None:
    """A gap or an overlap names both positions, and the session goes on as if nothing had been asked."""
    shard = open_shard(subject)
    session, undisturbed = shard.open_session(), shard.open_session()
    prompt = subject.model.prompts[0]
    expected = shard.forward(undisturbed, 0, tokens=prompt[:6], output="logits")
    shard.forward(session, 0, tokens=prompt[:5])
    with pytest.raises(ShardError) as caught:
        shard.forward(session, position, tokens=prompt[5:6], output="logits")
    assert caught.value.code == "position"
    assert (caught.value.fields["expected"], caught.value.fields["actual"]) == ("5", str(position))
    assert kind in caught.value.message
    answer = shard.forward(session, 5, tokens=prompt[5:6], output="logits")
    assert (answer.values, answer.length) == (expected.values, 6)


def test_session_trim_past_the_length_is_refused(subject: Subject, open_shard: OpenShard) -> None:
    """Trimming to a position that is not there yet names both and changes nothing."""
    shard = open_shard(subject)
    session = shard.open_session()
    shard.forward(session, 0, tokens=[5, 6, 7])
    with pytest.raises(ShardError) as caught:
        shard.trim(session, 4)
    assert caught.value.code == "position"
    assert (caught.value.fields["expected"], caught.value.fields["actual"]) == ("3", "4")
    assert shard.forward(session, 3, tokens=[8]).length == 4


def test_session_past_the_limit_is_refused(subject: Subject, open_shard: OpenShard) -> None:
    """One session more than max_sessions is refused with both figures; after a close there is room."""
    shard = open_shard(subject, max_sessions=2)
    one, other = shard.open_session(), shard.open_session()
    shard.forward(one, 0, tokens=[5, 6])
    with pytest.raises(ShardError) as caught:
        shard.open_session()
    assert caught.value.code == "capacity"
    assert int(caught.value.fields["needed"]) > int(caught.value.fields["available"])
    assert shard.forward(one, 2, tokens=[7]).length == 3
    shard.close_session(other)
    assert shard.forward(shard.open_session(), 0, tokens=[5]).length == 1


def test_session_without_free_cells_is_refused(subject: Subject, open_shard: OpenShard) -> None:
    """Rows that do not fit in the free cells are refused with both figures before they are computed."""
    shard = open_shard(subject)
    large, small = shard.open_session(), shard.open_session()
    fill(shard, large, 0, 240)
    shard.forward(small, 0, tokens=[5])
    with pytest.raises(ShardError) as caught:
        shard.forward(small, 1, tokens=[6] * 16)
    assert caught.value.code == "capacity"
    assert (caught.value.fields["needed"], caught.value.fields["available"]) == ("16", "15")
    assert shard.kv_cells_used() == 241
    assert shard.forward(small, 1, tokens=[6] * 15).length == 16
    assert shard.kv_cells_used() == SMALL.n_ctx
    assert shard.close_session(large) == 240
    assert shard.forward(small, 16, tokens=[6] * 16).length == 32


def test_session_can_take_every_cell(subject: Subject, open_shard: OpenShard) -> None:
    """One session reaches n_ctx rows, and not one more."""
    shard = open_shard(subject)
    session = shard.open_session()
    fill(shard, session, 0, SMALL.n_ctx)
    with pytest.raises(ShardError, match="KV cells"):
        shard.forward(session, SMALL.n_ctx, tokens=[5])
    assert shard.close_session(session) == SMALL.n_ctx


def test_sessions_apart_have_cells_of_their_own(subject: Subject, open_shard: OpenShard) -> None:
    """Without kv_unified a session that takes all its cells leaves the others theirs, and not one more."""
    shard = open_shard(subject, recipe=replace(SMALL, kv_unified=False), max_sessions=2)
    one, other = shard.open_session(), shard.open_session()
    for session in (one, other):
        fill(shard, session, 0, SMALL.n_ctx)
        before = shard.progress()
        with pytest.raises(ShardError) as caught:
            shard.forward(session, SMALL.n_ctx, tokens=[5])
        assert caught.value.code == "capacity"
        assert (caught.value.fields["needed"], caught.value.fields["available"]) == ("1", "0")
        assert shard.progress() == before, "it was refused before anything was computed"
    assert shard.kv_cells_used() == 2 * SMALL.n_ctx
    assert shard.trim(one, 200) == SMALL.n_ctx - 200
    assert shard.forward(one, 200, tokens=[5]).length == 201


def test_sessions_apart_give_the_bits_of_each_alone(subject: Subject, open_shard: OpenShard) -> None:
    """Without kv_unified sessions that share steps give the bits that each gives alone."""
    apart = replace(SMALL, kv_unified=False)
    prompts = subject.model.prompts
    alone = []
    for prompt in prompts:
        shard = open_shard(subject, recipe=apart)
        session = shard.open_session()
        alone.append(
            [shard.forward(session, i, tokens=[t], output="logits").values for i, t in enumerate(prompt)]
        )
    shard = open_shard(subject, recipe=apart)
    sessions = [shard.open_session() for _ in prompts]
    for i in range(max(map(len, prompts))):
        alive = [which for which, prompt in enumerate(prompts) if i < len(prompt)]
        rows = [
            Rows(session=sessions[which], position=i, tokens=[prompts[which][i]], output="logits")
            for which in alive
        ]
        answers = all_answers(shard.forward_many(rows))
        assert [answer.values for answer in answers] == [alone[which][i] for which in alive]


def test_sessions_interleaved_do_not_disturb_each_other(subject: Subject, open_shard: OpenShard) -> None:
    """Two sessions that alternate, with cells mixed and trims between, give the bits of each alone."""
    prompts = subject.model.prompts
    alone = []
    for prompt in prompts[:2]:
        chain = open_chain(open_shard, subject, ())
        session = chain.open_session()
        alone.append([chain.forward(session, i, [t], "logits").values for i, t in enumerate(prompt[:6])])
    shard = open_shard(subject)
    sessions = [shard.open_session() for _ in range(2)]
    for i in range(6):
        for which in (0, 1):
            token = prompts[which][i]
            answer = shard.forward(sessions[which], i, tokens=[token], output="logits")
            assert answer.values == alone[which][i]
        if i == 3:
            shard.trim(sessions[1], 2)
            for j in (2, 3):
                shard.forward(sessions[1], j, tokens=[prompts[1][j]])
