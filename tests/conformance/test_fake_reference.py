"""The fake engine computes its documented formulas."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.chains import open_chain
from conformance.fake_reference import FakeReference, as_floats, as_rows, draw, log_probability
from conformance.shard import SMALL, Model, OpenShard, Subject
from shard_engine import Sampling

REFERENCES = [
    FakeReference(),
    FakeReference(n_layer=6, n_embd=3, n_vocab=300, seed=7),
    FakeReference(n_layer=1, n_embd=1, n_vocab=2, seed=4294967295),
    FakeReference(n_layer=5, n_embd=6, n_vocab=80, seed=2, boundary="f16"),
    FakeReference(n_layer=4, n_vocab=90, seed=3, boundary="bf16"),
]


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda reference: reference.specification)
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
def test_fake_engine_equals_its_reference(
    fake_subject: Subject, open_shard: OpenShard, reference: FakeReference, cut: bool
) -> None:
    """Logits, embeddings and draws of random tokens are those of the formulas, cut or not."""
    fake_subject.model = Model(path=reference.specification, n_layer=reference.n_layer)
    cuts = range(1, reference.n_layer) if cut else ()
    recipe = replace(SMALL, boundary=reference.boundary)
    chain = open_chain(open_shard, fake_subject, cuts, recipe=recipe)
    observed, sampled, embedding = (chain.open_session() for _ in range(3))
    session = reference.open()
    numbers = random.Random(reference.seed)
    position = 0
    for length in (5, 1, 1, 3):
        tokens = [numbers.randrange(reference.n_vocab) for _ in range(length)]
        rows = [reference.hidden(session, token) for token in tokens]
        expected = [reference.logits(row) for row in rows]
        answer = chain.forward(observed, position, tokens, "logits_all")
        assert answer.values == b"".join(map(as_floats, expected))
        embedded = chain.forward(embedding, position, tokens, "embedding")
        assert embedded.values == b"".join(map(as_floats, rows))
        drawn = chain.forward(sampled, position, tokens, "token")
        best = expected[-1].index(max(expected[-1]))
        assert drawn.token == best
        assert drawn.logprob == pytest.approx(log_probability(expected[-1], best), abs=1e-6)
        position += length


@pytest.mark.parametrize("boundary", ["f32", "f16", "bf16"])
def test_fake_engine_hidden_rows_are_its_references(
    fake_subject: Subject, open_shard: OpenShard, boundary: str
) -> None:
    """A boundary carries the residues of the last layer as exact values of its dtype."""
    reference = FakeReference(n_layer=6, n_vocab=256, boundary=boundary)
    session = reference.open()
    shard = open_shard(fake_subject, layers=(0, 5), recipe=replace(SMALL, boundary=boundary))
    tokens = [3, 1, 4, 1, 5]
    expected = [reference.hidden(session, token, n_layers=5) for token in tokens]
    answer = shard.forward(shard.open_session(), 0, tokens=tokens, output="hidden")
    assert answer.dtype == boundary
    assert answer.values == b"".join(as_rows(row, boundary) for row in expected)


SAMPLINGS = [
    Sampling(temperature=0.8, seed=1),
    Sampling(temperature=1.7, seed=2**32 - 1, top_k=20),
    Sampling(temperature=1.0, seed=3, typical_p=0.6),
    Sampling(temperature=1.0, seed=4, top_p=0.7),
    Sampling(temperature=1.0, seed=5, min_p=0.2),
    Sampling(temperature=0.0, repeat_penalty=1.4),
    Sampling(temperature=0.7, seed=6, presence_penalty=2.5, repeat_last_n=-1),
    Sampling(temperature=0.7, seed=7, frequency_penalty=1.25, repeat_last_n=3),
    Sampling(temperature=0.0, logit_bias=[(7, 30.0), (9, float("-inf")), (7, -1.0)]),
    Sampling(
        temperature=0.9,
        seed=8,
        top_k=50,
        top_p=0.95,
        min_p=0.02,
        typical_p=0.9,
        repeat_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        logit_bias=[(60, 2.0)],
    ),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=range(len(SAMPLINGS)))
@pytest.mark.parametrize("boundary", ["f32", "bf16"])
def test_fake_engine_draws_as_its_reference(
    fake_subject: Subject, open_shard: OpenShard, sampling: Sampling, boundary: str
) -> None:
    """Every token of a generation on a cut model is the documented draw, with its log-probability."""
    reference = FakeReference(n_layer=6, n_vocab=64, boundary=boundary)
    fake_subject.model = Model(path=reference.specification, n_layer=reference.n_layer)
    chain = open_chain(open_shard, fake_subject, (2,), recipe=replace(SMALL, boundary=boundary))
    sessions, session = chain.open_session(sampling), reference.open()
    rows: list[int] = []
    tokens = [3, 1, 4, 1, 5]
    for _ in range(40):
        logits = [reference.logits(reference.hidden(session, token)) for token in tokens][-1]
        answer = chain.forward(sessions, len(rows), tokens, "token")
        rows += tokens
        assert answer.token == draw(sampling, logits, rows)
        assert answer.logprob == pytest.approx(log_probability(logits, answer.token), abs=1e-6)
        tokens = [answer.token]


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda reference: reference.specification)
def test_fake_artifact_is_named_by_its_canonical_text(
    fake_subject: Subject, reference: FakeReference
) -> None:
    """The artifact's digest is that of the canonical text, however it was written."""
    digest = hashlib.sha256(reference.specification.encode()).hexdigest()
    pairs = reference.specification.removeprefix("fake:").split(",")
    for text in (reference.specification, "fake:" + ",".join(reversed(pairs))):
        assert fake_subject.inspect(text).artifact_sha256 == digest


def test_fake_slice_is_its_documented_text(fake_subject: Subject, tmp_path: Path) -> None:
    """A slice file holds the canonical text and the range, three lines."""
    output = tmp_path / "slice"
    fake_subject.slice("fake:", (3, 7), output)
    assert output.read_text() == (
        "gguf-worker fake slice 1\nfake:layers=12,embd=8,vocab=64,seed=1\nlayers 3:7\n"
    )
