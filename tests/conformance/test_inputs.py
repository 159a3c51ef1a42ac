"""What a shard refuses to compute, and that nothing changes when it does."""

from __future__ import annotations

import array

import pytest

from conformance.shard import Answer, OpenShard, Rows, Shard, ShardError, Subject


def refused(shard: Shard, code: str, session: int, position: int, **rows: object) -> ShardError:
    """The error of a forward that must fail with `code` and leave all cells as they were."""
    before = shard.kv_cells_used()
    with pytest.raises(ShardError) as caught:
        shard.forward(session, position, **rows)
    assert caught.value.code == code, caught.value
    assert shard.kv_cells_used() == before
    return caught.value


def hidden_rows(n_rows: int, n_embd: int) -> array.array[float]:
    return array.array("f", [float(i % 5) for i in range(n_rows * n_embd)])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")], ids=str)
@pytest.mark.parametrize("place", [0, -1])
def test_input_that_is_not_finite_is_refused(
    subject: Subject, open_shard: OpenShard, bad: float, place: int
) -> None:
    """NaN and infinities name their row and direction; the session takes good rows afterwards."""
    shard = open_shard(subject, layers=(2, 4))
    rows = hidden_rows(3, shard.description.n_embd)
    good = rows.tobytes()
    rows[place] = bad
    session = shard.open_session()
    error = refused(shard, "non_finite", session, 0, hidden=rows.tobytes())
    assert error.fields == {"row": "0" if place == 0 else "2", "direction": "in"}
    assert shard.forward(session, 0, hidden=good).length == 3


def test_input_of_tokens_on_a_later_stage_is_refused(subject: Subject, open_shard: OpenShard) -> None:
    """A stage that does not begin at layer 0 takes hidden rows and says so."""
    shard = open_shard(subject, layers=(2, 4))
    error = refused(shard, "argument", shard.open_session(), 0, tokens=[5, 6])
    assert "hidden rows" in error.message


def test_input_of_hidden_rows_on_the_first_stage_is_refused(subject: Subject, open_shard: OpenShard) -> None:
    """The first stage takes tokens and says so."""
    shard = open_shard(subject, layers=(0, 3))
    rows = hidden_rows(1, shard.description.n_embd)
    error = refused(shard, "argument", shard.open_session(), 0, hidden=rows.tobytes())
    assert "tokens" in error.message


@pytest.mark.parametrize("layers", [(0, 6), (0, 3)], ids=str)
def test_input_token_outside_the_vocabulary_is_named(
    subject: Subject, open_shard: OpenShard, layers: tuple[int, int]
) -> None:
    """A token id below 0 or past the vocabulary is refused and named, wherever it stands."""
    shard = open_shard(subject, layers=layers)
    n_vocab = shard.description.n_vocab
    session = shard.open_session()
    for bad in (-1, n_vocab, 2**31 - 1):
        assert str(bad) in refused(shard, "argument", session, 0, tokens=[5, bad]).message
    assert shard.forward(session, 0, tokens=[5, n_vocab - 1]).length == 2


@pytest.mark.parametrize(
    ("layers", "output"),
    [
        ((0, 3), "logits"),
        ((0, 3), "logits_all"),
        ((0, 3), "token"),
        ((0, 6), "hidden"),
    ],
    ids=str,
)
def test_output_that_is_not_owned_is_refused(
    subject: Subject, open_shard: OpenShard, layers: tuple[int, int], output: str
) -> None:
    """Only the last stage gives logits and tokens, and it gives no hidden rows."""
    shard = open_shard(subject, layers=layers)
    session = shard.open_session()
    refused(shard, "not_owned", session, 0, tokens=[5], output=output)
    assert shard.forward(session, 0, tokens=[5]).length == 1


def test_refused_rows_leave_other_sessions_alone(subject: Subject, open_shard: OpenShard) -> None:
    """Of sessions served together, those with bad rows get their own error and the others their result."""
    shard = open_shard(subject)
    prompt = subject.model.prompts[0]
    alone, good, gap, bad_token = (shard.open_session() for _ in range(4))
    expected = shard.forward(alone, 0, tokens=prompt, output="logits")
    outcomes = shard.forward_many(
        [
            Rows(session=gap, position=1, tokens=prompt),
            Rows(session=good, position=0, tokens=prompt, output="logits"),
            Rows(session=bad_token, position=0, tokens=[5, -1]),
            Rows(session=77, position=0, tokens=[5]),
        ]
    )
    codes = [outcome.code if isinstance(outcome, ShardError) else "ok" for outcome in outcomes]
    assert codes == ["position", "ok", "argument", "no_session"]
    assert isinstance(outcomes[1], Answer)
    assert outcomes[1].values == expected.values
    assert shard.kv_cells_used() == 2 * len(prompt)
