"""What a forward gives back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from conformance.chains import all_answers
from conformance.shard import SMALL, OpenShard, Rows, ShardError, Subject


def test_output_token_is_the_most_likely_one(subject: Subject, open_shard: OpenShard) -> None:
    """Greedy is the argmax of the logits, the lowest id among equals, with its log-probability and the
    bytes that it adds to a text."""
    shard = open_shard(subject)
    sampled, observed = shard.open_session(), shard.open_session()
    tokens, position = list(subject.model.prompts[0]), 0
    for _ in range(12):
        answer = shard.forward(sampled, position, tokens=tokens, output="token")
        logits = np.frombuffer(
            shard.forward(observed, position, tokens=tokens, output="logits").values, dtype="f4"
        ).astype("f8")
        shifted = logits - logits.max()
        expected = shifted - np.log(np.exp(shifted).sum())
        assert answer.token == int(logits.argmax())
        assert answer.logprob == pytest.approx(expected[answer.token], abs=1e-5)
        assert answer.end_of_generation == shard.token_info(answer.token).end_of_generation
        assert (answer.values, answer.n_rows) == (b"", 0)
        anchor = shard.detokenize([tokens[-1]])
        assert answer.text == shard.detokenize([tokens[-1], answer.token])[len(anchor) :]
        position += len(tokens)
        tokens = [answer.token]


def test_output_logits_is_the_last_row_of_all(subject: Subject, open_shard: OpenShard) -> None:
    """`logits` gives one row, equal to the last of `logits_all`; the shapes are stated."""
    shard = open_shard(subject)
    one, other = shard.open_session(), shard.open_session()
    prompt, n_vocab = subject.model.prompts[0], shard.description.n_vocab
    last = shard.forward(one, 0, tokens=prompt, output="logits")
    every = shard.forward(other, 0, tokens=prompt, output="logits_all")
    assert (last.n_rows, last.n_columns, len(last.values)) == (1, n_vocab, 4 * n_vocab)
    assert (every.n_rows, every.n_columns) == (len(prompt), n_vocab)
    assert len(every.values) == 4 * n_vocab * len(prompt)
    assert every.values[-4 * n_vocab :] == last.values


def test_output_hidden_has_every_row(subject: Subject, open_shard: OpenShard) -> None:
    """`hidden` gives one finite row of n_embd values per row that went in."""
    shard = open_shard(subject, layers=(0, 3))
    prompt, n_embd = subject.model.prompts[0], shard.description.n_embd
    answer = shard.forward(shard.open_session(), 0, tokens=prompt, output="hidden")
    assert (answer.n_rows, answer.n_columns) == (len(prompt), n_embd)
    values = np.frombuffer(answer.values, dtype="f4").reshape(len(prompt), n_embd)
    assert np.isfinite(values).all()
    assert len({row.tobytes() for row in values}) == len(prompt)


@pytest.mark.parametrize("layers", [(0, 6), (0, 3)], ids=str)
def test_output_none_keeps_the_rows_and_gives_nothing(
    subject: Subject, open_shard: OpenShard, layers: tuple[int, int]
) -> None:
    """`none` takes the cells like any other output, so that what follows is the same."""
    shard = open_shard(subject, layers=layers)
    output = "logits" if layers[1] == subject.model.n_layer else "hidden"
    silent, observed = shard.open_session(), shard.open_session()
    prompt = subject.model.prompts[0]
    answer = shard.forward(silent, 0, tokens=prompt, output="none")
    assert (answer.values, answer.n_rows, answer.token) == (b"", 0, None)
    assert (answer.length, answer.kv_cells) == (len(prompt), len(prompt))
    shard.forward(observed, 0, tokens=prompt, output=output)
    following = [
        shard.forward(session, len(prompt), tokens=[9], output=output).values
        for session in (silent, observed)
    ]
    assert following[0] == following[1]


def test_output_embedding_has_every_row(subject: Subject, open_shard: OpenShard) -> None:
    """`embedding` gives a row of float32 for each row that went in, also of one row and in pieces, and the
    same rows give the same bits."""
    shard = open_shard(subject, recipe=replace(SMALL, prefill_chunk=5, boundary="bf16"))
    prompt, n_columns = subject.model.prompts[0], shard.description.n_embd_out
    sessions = [shard.open_session() for _ in range(2)]
    answers = [shard.forward(session, 0, tokens=prompt[:5], output="embedding") for session in sessions]
    assert answers[0].values == answers[1].values
    assert (answers[0].n_rows, answers[0].n_columns, answers[0].dtype) == (5, n_columns, "f32")
    assert len({answers[0].values[4 * n_columns * row :][: 4 * n_columns] for row in range(5)}) == 5
    single = shard.forward(sessions[0], 5, tokens=prompt[5:6], output="embedding")
    assert (single.n_rows, len(single.values), single.token) == (1, 4 * n_columns, None)


def test_output_embedding_beside_others_changes_nothing(subject: Subject, open_shard: OpenShard) -> None:
    """What is asked of a session in the same step, and of the same session later, has the bits that it has
    without embeddings."""
    prompt = subject.model.prompts[0]
    outcomes = []
    for output in ("none", "embedding"):
        shard = open_shard(subject)
        one, other = shard.open_session(), shard.open_session()
        shard.forward(one, 0, tokens=prompt, output="none")
        together = [
            Rows(session=one, position=len(prompt), tokens=[9], output="logits"),
            Rows(session=other, position=0, tokens=prompt, output=output),
        ]
        first = all_answers(shard.forward_many(together))
        last = shard.forward(other, len(prompt), tokens=[11], output="logits")
        assert len(first[1].values) == (
            0 if output == "none" else 4 * shard.description.n_embd_out * len(prompt)
        )
        outcomes.append((first[0].values, last.values))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("layers", [(0, 2), (2, 4)], ids=str)
def test_output_embedding_is_the_last_stages(
    subject: Subject, open_shard: OpenShard, layers: tuple[int, int]
) -> None:
    """A stage that is not the last refuses it and says whom to ask; its session stays as it was."""
    shard = open_shard(subject, layers=layers)
    session, n_embd = shard.open_session(), shard.description.n_embd
    tokens, hidden = ([5], None) if layers[0] == 0 else (None, bytes(4 * n_embd))
    with pytest.raises(ShardError) as caught:
        shard.forward(session, 0, tokens=tokens, hidden=hidden, output="embedding")
    assert caught.value.code == "not_owned"
    assert "last stage" in caught.value.message
    assert shard.forward(session, 0, tokens=tokens, hidden=hidden).length == 1


def test_progress_rises_with_every_forward(subject: Subject, open_shard: OpenShard) -> None:
    """The counter that tells a slow step from a hung one moves whenever something is computed."""
    shard = open_shard(subject)
    session = shard.open_session()
    readings = [shard.progress()]
    for position in range(3):
        shard.forward(session, position, tokens=[5])
        readings.append(shard.progress())
    assert readings == sorted(set(readings))
