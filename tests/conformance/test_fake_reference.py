"""The fake engine computes its documented formulas."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from conformance.chains import open_chain
from conformance.fake_reference import FakeReference, as_floats, log_probability
from conformance.shard import Model, OpenShard, Subject

REFERENCES = [
    FakeReference(),
    FakeReference(n_layer=6, n_embd=3, n_vocab=300, seed=7),
    FakeReference(n_layer=1, n_embd=1, n_vocab=2, seed=4294967295),
]


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda reference: reference.specification)
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
def test_fake_engine_equals_its_reference(
    fake_subject: Subject, open_shard: OpenShard, reference: FakeReference, cut: bool
) -> None:
    """Logits, token and log-probability of random tokens are those of the formulas, cut or not."""
    fake_subject.model = Model(path=reference.specification, n_layer=reference.n_layer)
    chain = open_chain(open_shard, fake_subject, range(1, reference.n_layer) if cut else ())
    observed, sampled = chain.open_session(), chain.open_session()
    session = reference.open()
    numbers = random.Random(reference.seed)
    position = 0
    for length in (5, 1, 1, 3):
        tokens = [numbers.randrange(reference.n_vocab) for _ in range(length)]
        expected = [reference.logits(reference.hidden(session, token)) for token in tokens]
        answer = chain.forward(observed, position, tokens, "logits_all")
        assert answer.values == b"".join(map(as_floats, expected))
        drawn = chain.forward(sampled, position, tokens, "token")
        best = expected[-1].index(max(expected[-1]))
        assert drawn.token == best
        assert drawn.logprob == pytest.approx(log_probability(expected[-1], best), abs=1e-6)
        position += length


def test_fake_engine_hidden_rows_are_its_references(fake_subject: Subject, open_shard: OpenShard) -> None:
    """A boundary carries the residues of the last layer as exact floats."""
    reference = FakeReference(n_layer=6, n_vocab=256)
    session = reference.open()
    shard = open_shard(fake_subject, layers=(0, 5))
    tokens = [3, 1, 4, 1, 5]
    expected = [reference.hidden(session, token, n_layers=5) for token in tokens]
    answer = shard.forward(shard.open_session(), 0, tokens=tokens, output="hidden")
    assert answer.values == b"".join(map(as_floats, expected))


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
