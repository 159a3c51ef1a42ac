"""A chain of shards gives the unsplit model's very bits."""

from __future__ import annotations

import pytest

from conformance.chains import Feed, open_chain
from conformance.shard import OpenShard, Subject
from reference import most_likely
from tally import Tally

CUTS = [(3,), (2, 4), (1, 5), (1, 2, 3, 4, 5)]


@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_chain_equals_unsplit_for_prefill_and_decode(
    subject: Subject, open_shard: OpenShard, tally: Tally, cuts: tuple[int, ...]
) -> None:
    """All logits of a prefill and of eight decode steps are the same bits."""
    whole, chain = (open_chain(open_shard, subject, one) for one in ((), cuts))
    one, other = whole.open_session(), chain.open_session()
    tokens, position = list(subject.model.prompts[0]), 0
    for step in range(9):
        expected = whole.forward(one, position, tokens, "logits_all")
        actual = chain.forward(other, position, tokens, "logits_all")
        assert actual.n_rows == len(tokens)
        tally.check(expected.values, actual.values, f"{subject.engine} cut at {cuts}, step {step}")
        position += len(tokens)
        tokens = [most_likely(expected.values[-4 * expected.n_columns :])]


def test_chain_equals_unsplit_for_several_sessions_together(
    subject: Subject, open_shard: OpenShard, tally: Tally
) -> None:
    """Sessions of different lengths that share every step give the bits that each gives alone."""
    whole, chain = (open_chain(open_shard, subject, cuts) for cuts in ((), (2, 4)))
    prompts = subject.model.prompts
    together = [chain.open_session() for _ in prompts]
    expected = []
    for prompt in prompts:
        alone = whole.open_session()
        prefill = whole.forward(alone, 0, prompt, "logits_all")
        decode = whole.forward(alone, len(prompt), prompt[:1], "logits")
        expected.append((prefill, decode))
        whole.close_session(alone)
    prefills = [Feed(sessions, 0, prompt) for sessions, prompt in zip(together, prompts, strict=True)]
    decodes = [
        Feed(sessions, len(prompt), prompt[:1]) for sessions, prompt in zip(together, prompts, strict=True)
    ]
    for index, feeds in enumerate((prefills, decodes)):
        answers = chain.forward_many(feeds, "logits_all")
        for session, answer in enumerate(answers):
            what = f"{subject.engine} session {session} of a shared step"
            tally.check(expected[session][index].values, answer.values, what)


def test_chain_rows_depend_on_the_rows_before(subject: Subject, open_shard: OpenShard) -> None:
    """The same token after other tokens gives other logits: the KV cells are really used."""
    chain = open_chain(open_shard, subject, (3,))
    one, other = chain.open_session(), chain.open_session()
    first = chain.forward(one, 0, [5, 7, 9], "logits")
    second = chain.forward(other, 0, [6, 7, 9], "logits")
    assert first.values != second.values
