"""What a forward gives back."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.shard import OpenShard, Subject


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


def test_progress_rises_with_every_forward(subject: Subject, open_shard: OpenShard) -> None:
    """The counter that tells a slow step from a hung one moves whenever something is computed."""
    shard = open_shard(subject)
    session = shard.open_session()
    readings = [shard.progress()]
    for position in range(3):
        shard.forward(session, position, tokens=[5])
        readings.append(shard.progress())
    assert readings == sorted(set(readings))
