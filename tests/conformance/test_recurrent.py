"""Models with recurrent state: their sessions can be cut only at the end and at 0."""

from __future__ import annotations

import pytest

from conformance.shard import Model, OpenShard, Rows, Shard, ShardError, Subject
from shard_engine import Sampling

PROMPT = (5, 6, 7, 8, 9, 10, 11)


@pytest.fixture
def recurrent(fake_subject: Subject) -> Subject:
    """The fake engine with a recurrent model."""
    fake_subject.model = Model(path="fake:layers=6,vocab=256,recurrent=1", n_layer=6)
    return fake_subject


def next_row(shard: Shard, session: int, position: int) -> bytes:
    return shard.forward(session, position, tokens=[20], output="logits").values


def test_recurrent_model_says_that_it_cannot_be_trimmed(recurrent: Subject, open_shard: OpenShard) -> None:
    """`can_trim` is false, and the artifact is another one than without the state."""
    loaded = open_shard(recurrent).description
    plain = open_shard(recurrent, model="fake:layers=6,vocab=256").description
    assert (loaded.can_trim, plain.can_trim) == (False, True)
    assert loaded.artifact != plain.artifact


def test_recurrent_session_is_trimmed_at_its_end_and_at_0_only(
    recurrent: Subject, open_shard: OpenShard
) -> None:
    """A trim elsewhere is `unsupported`, says where one can be, and changes nothing."""
    shard = open_shard(recurrent)
    session, undisturbed = shard.open_session(), shard.open_session()
    for one in (session, undisturbed):
        shard.forward(one, 0, tokens=PROMPT)
    for position in (1, 6):
        with pytest.raises(ShardError) as caught:
            shard.trim(session, position)
        assert caught.value.code == "unsupported"
        assert (caught.value.fields["position"], caught.value.fields["length"]) == (str(position), "7")
        assert "can_trim" in caught.value.message
    assert shard.trim(session, 7) == 0
    assert next_row(shard, session, 7) == next_row(shard, undisturbed, 7)
    assert shard.trim(session, 0) == 8
    assert shard.forward(session, 0, tokens=PROMPT).length == 7


def test_recurrent_session_is_forked_at_its_end_and_at_0_only(
    recurrent: Subject, open_shard: OpenShard
) -> None:
    """A fork of the whole session goes on as its source; one elsewhere is `unsupported`."""
    shard = open_shard(recurrent)
    source = shard.open_session()
    shard.forward(source, 0, tokens=PROMPT)
    with pytest.raises(ShardError) as caught:
        shard.fork(source, 3)
    assert caught.value.code == "unsupported"
    fork, empty = shard.fork(source, 7).session, shard.fork(source, 0).session
    assert shard.forward(empty, 0, tokens=PROMPT).length == 7
    rows = [next_row(shard, session, 7) for session in (source, fork, empty)]
    assert len(set(rows)) == 1


@pytest.mark.parametrize(("plan", "code"), [("nan@2", "non_finite"), ("hang@2", "cancelled")])
def test_recurrent_session_survives_a_step_that_fails(
    recurrent: Subject, open_shard: OpenShard, plan: str, code: str
) -> None:
    """A step that fails or is cancelled leaves the session as it was, though it could not be trimmed."""
    shard = open_shard(recurrent, fault_plan=plan)
    session, undisturbed = shard.open_session(), shard.open_session()
    shard.forward(session, 0, tokens=PROMPT)
    rows = Rows(session=session, position=7, tokens=[30, 31], output="logits")
    fail = shard.forward_cancelled if code == "cancelled" else shard.forward_rows
    with pytest.raises(ShardError) as caught:
        fail(rows)
    assert caught.value.code == code
    assert shard.kv_cells_used() == 7
    shard.forward(undisturbed, 0, tokens=PROMPT)
    assert next_row(shard, session, 7) == next_row(shard, undisturbed, 7)


def test_recurrent_session_survives_a_draw_that_is_refused(recurrent: Subject, open_shard: OpenShard) -> None:
    """A draw that fails after its row was computed takes the row back."""
    shard = open_shard(recurrent)
    banned = shard.open_session(Sampling(logit_bias=[(token, float("-inf")) for token in range(256)]))
    undisturbed = shard.open_session()
    for session in (banned, undisturbed):
        shard.forward(session, 0, tokens=PROMPT)
    with pytest.raises(ShardError):
        shard.forward(banned, 7, tokens=[30], output="token")
    assert next_row(shard, banned, 7) == next_row(shard, undisturbed, 7)
