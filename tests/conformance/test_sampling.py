"""Draws: a function of logits, seed, position and the tokens of a session's rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from conformance.chains import Chain, draw_many, open_chain
from conformance.inputs import input_rows
from conformance.shard import SMALL, OpenShard, ShardError, Subject
from shard_engine import Sampling

N_DRAWS = 12
INFINITY = float("inf")

SAMPLINGS = {
    "greedy": Sampling(),
    "temperature": Sampling(temperature=1.2, seed=1),
    "top_k": Sampling(temperature=1.2, seed=2, top_k=9),
    "top_p": Sampling(temperature=1.2, seed=3, top_p=0.6),
    "min_p": Sampling(temperature=1.2, seed=4, min_p=0.1),
    "typical_p": Sampling(temperature=1.2, seed=5, typical_p=0.5),
    "repeat": Sampling(repeat_penalty=1.5),
    "presence": Sampling(temperature=0.9, seed=6, presence_penalty=1.5, repeat_last_n=5),
    "frequency": Sampling(frequency_penalty=0.75, repeat_last_n=-1),
    "bias": Sampling(temperature=0.9, seed=7, logit_bias=[(9, 3.0), (12, -INFINITY)]),
    "all": Sampling(
        temperature=0.8,
        seed=2**32 - 1,
        top_k=40,
        top_p=0.95,
        min_p=0.01,
        typical_p=0.95,
        repeat_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.1,
        logit_bias=[(9, 1.0)],
        top_logprobs=2,
    ),
}


def drawn_anew(chain: Chain, sampling: Sampling, prompt: tuple[int, ...], count: int = N_DRAWS) -> list[int]:
    """What a new session draws after a prompt."""
    sessions = chain.open_session(sampling)
    tokens = draw_many(chain, sessions, 0, prompt, count)
    chain.close_session(sessions)
    return tokens


@pytest.mark.parametrize("name", SAMPLINGS)
def test_draws_of_a_replayed_session_are_the_same(subject: Subject, open_shard: OpenShard, name: str) -> None:
    """A session that is closed, opened again and given its rows at once goes on with the same draws."""
    chain, prompt = open_chain(open_shard, subject, ()), subject.model.prompts[0]
    first = drawn_anew(chain, SAMPLINGS[name], prompt)
    assert drawn_anew(chain, SAMPLINGS[name], prompt) == first
    for k in (1, 5):
        replayed = chain.open_session(SAMPLINGS[name])
        assert draw_many(chain, replayed, 0, [*prompt, *first[:k]], N_DRAWS - k) == first[k:]
        chain.close_session(replayed)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_draws_of_a_chain_are_those_of_the_unsplit_model(
    subject: Subject, open_shard: OpenShard, name: str
) -> None:
    """A last stage that is told the tokens beside its hidden rows draws what the unsplit model does."""
    prompt = subject.model.prompts[1]
    whole, cut = (open_chain(open_shard, subject, cuts) for cuts in ((), (3,)))
    assert drawn_anew(cut, SAMPLINGS[name], prompt) == drawn_anew(whole, SAMPLINGS[name], prompt)


@pytest.mark.parametrize("kv_unified", [True, False], ids=["shared", "apart"])
@pytest.mark.parametrize("name", ["temperature", "repeat", "presence", "all"])
def test_draws_after_a_trim_or_fork_know_only_the_rows_that_are_left(
    subject: Subject, open_shard: OpenShard, name: str, kv_unified: bool
) -> None:
    """Rows that were trimmed, or lie past a fork, have no part in later draws; what is left has."""
    recipe = replace(SMALL, kv_unified=kv_unified)
    chain, (one, two, _) = open_chain(open_shard, subject, (3,), recipe=recipe), subject.model.prompts
    sampling = SAMPLINGS[name]
    expected = drawn_anew(chain, sampling, (*one[:6], *two))
    sessions = chain.open_session(sampling)
    draw_many(chain, sessions, 0, one, 4)
    fork = chain.fork(sessions, 6, sampling)
    assert draw_many(chain, fork, 6, two, N_DRAWS) == expected
    for shard, session in zip(chain.shards, sessions, strict=True):
        shard.trim(session, 6)
    assert draw_many(chain, sessions, 6, two, N_DRAWS) == expected


def test_draws_of_a_fork_follow_its_own_sampling(subject: Subject, open_shard: OpenShard) -> None:
    """A fork does not inherit how its source draws: without a sampling of its own it is greedy."""
    chain, prompt = open_chain(open_shard, subject, ()), subject.model.prompts[0]
    banned = drawn_anew(chain, Sampling(), prompt, 1)[0]
    source = chain.open_session(Sampling(logit_bias=[(banned, -INFINITY)]))
    assert draw_many(chain, source, 0, prompt, 1) != [banned]
    fork = chain.fork(source, len(prompt) - 1)
    assert draw_many(chain, fork, len(prompt) - 1, prompt[-1:], 1) == [banned]


def test_draws_by_seed_differ_and_greedy_ones_do_not(subject: Subject, open_shard: OpenShard) -> None:
    """Another seed draws other tokens, unless nothing is drawn by chance."""
    chain, prompt = open_chain(open_shard, subject, ()), subject.model.prompts[0]
    hot, cold = Sampling(temperature=2.0), Sampling()
    by_chance = {tuple(drawn_anew(chain, replace(hot, seed=seed), prompt)) for seed in range(4)}
    greedy = {tuple(drawn_anew(chain, replace(cold, seed=seed), prompt)) for seed in range(4)}
    assert (len(by_chance), len(greedy)) == (4, 1)


@pytest.mark.parametrize(
    "narrow", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}], ids=lambda narrow: next(iter(narrow))
)
def test_draw_from_the_narrowest_filter_is_one_of_the_best(
    subject: Subject, open_shard: OpenShard, narrow: dict[str, float]
) -> None:
    """A filter that keeps only the best leaves chance no other token, however hot it is."""
    shard = open_shard(subject)
    session = shard.open_session(Sampling(temperature=5.0, seed=3, top_logprobs=1, **narrow))  # type: ignore[arg-type]
    tokens, position = list(subject.model.prompts[0]), 0
    for _ in range(N_DRAWS):
        answer = shard.forward(session, position, tokens=tokens, output="token")
        assert answer.logprob == answer.top[0].logprob
        position += len(tokens)
        assert answer.token is not None
        tokens = [answer.token]


def test_draws_with_a_prohibitive_penalty_never_repeat(subject: Subject, open_shard: OpenShard) -> None:
    """A presence penalty over all rows that outweighs any logit leaves no token to be drawn twice."""
    chain, prompt = open_chain(open_shard, subject, (3,)), subject.model.prompts[2]
    for sampling in (
        Sampling(presence_penalty=1000.0, repeat_last_n=-1),
        Sampling(temperature=1.0, seed=9, presence_penalty=1000.0, repeat_last_n=-1),
    ):
        rows = [*dict.fromkeys(prompt), *drawn_anew(chain, sampling, prompt, 40)]
        assert len(set(rows)) == len(rows)


def test_draws_with_a_bias_keep_to_it(subject: Subject, open_shard: OpenShard) -> None:
    """A token with a large bias is always drawn; one with minus infinity never, though it was the best."""
    chain, prompt = open_chain(open_shard, subject, ()), subject.model.prompts[0]
    assert drawn_anew(chain, Sampling(logit_bias=[(17, 1000.0)]), prompt) == [17] * N_DRAWS
    best = drawn_anew(chain, Sampling(), prompt, 1)[0]
    for seed in range(20):
        sampling = Sampling(temperature=0.5, seed=seed, logit_bias=[(best, -INFINITY)])
        assert drawn_anew(chain, sampling, prompt, 1) != [best]


def test_draw_brings_the_likeliest_tokens_along(subject: Subject, open_shard: OpenShard) -> None:
    """Log-probabilities and candidates are of the logits as computed, whatever was drawn by which rule."""
    shard, prompt = open_shard(subject), subject.model.prompts[0]
    observed = shard.forward(shard.open_session(), 0, tokens=prompt, output="logits")
    logits = np.frombuffer(observed.values, dtype="f4").astype("f8")
    expected = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    order = np.lexsort((np.arange(len(logits)), -logits))
    for n, sampling in (
        (1, Sampling()),
        (5, Sampling(temperature=3.0, seed=4)),
        (64, Sampling(logit_bias=[(7, 900.0)])),
        (0, Sampling(temperature=0.7)),
    ):
        session = shard.open_session(replace(sampling, top_logprobs=n))
        answer = shard.forward(session, 0, tokens=prompt, output="token")
        assert answer.token is not None
        assert answer.logprob == pytest.approx(expected[answer.token], abs=1e-5)
        assert [candidate.token for candidate in answer.top] == order[:n].tolist()
        for candidate in answer.top:
            assert candidate.logprob == pytest.approx(expected[candidate.token], abs=1e-5)
            anchor = shard.detokenize([prompt[-1]])
            assert candidate.text == shard.detokenize([prompt[-1], candidate.token])[len(anchor) :]
        shard.close_session(session)


def test_output_without_a_draw_brings_no_candidates(subject: Subject, open_shard: OpenShard) -> None:
    """Rows of logits come without a token, its candidates or its log-probability."""
    shard = open_shard(subject)
    session = shard.open_session(Sampling(temperature=1.0, top_logprobs=5))
    answer = shard.forward(session, 0, tokens=[5, 6], output="logits")
    assert (answer.token, answer.top) == (None, ())


# ---- refusals -----------------------------------------------------------------------------------

NAN = float("nan")
REFUSED = [
    ("temperature", -0.1),
    ("temperature", NAN),
    ("temperature", INFINITY),
    ("temperature", 1e-7),
    ("top_k", -1),
    ("top_p", 0.0),
    ("top_p", 1.01),
    ("top_p", NAN),
    ("min_p", -0.01),
    ("min_p", 1.01),
    ("min_p", NAN),
    ("typical_p", 0.0),
    ("typical_p", 1.01),
    ("repeat_penalty", 0.0),
    ("repeat_penalty", -1.0),
    ("repeat_penalty", INFINITY),
    ("presence_penalty", NAN),
    ("presence_penalty", 1001.0),
    ("frequency_penalty", -INFINITY),
    ("frequency_penalty", -1001.0),
    ("repeat_last_n", -2),
    ("top_logprobs", 65),
]


@pytest.mark.parametrize(("field", "actual"), REFUSED)
@pytest.mark.parametrize("layers", [(0, 6), (0, 3)], ids=str)
def test_sampling_out_of_its_range_is_named(
    in_process_subject: Subject,
    open_shard: OpenShard,
    layers: tuple[int, int],
    field: str,
    actual: float,
) -> None:
    """A value that cannot be drawn with is refused with field and value, on every stage; no session is open.

    (The worker's protocol refuses most of them before an engine hears of it.)
    """
    shard = open_shard(in_process_subject, layers=layers, max_sessions=1)
    with pytest.raises(ShardError) as caught:
        shard.open_session(Sampling(**{field: actual}))  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.fields["field"]) == ("argument", f"sampling.{field}")
    assert float(caught.value.fields["actual"]) == pytest.approx(actual, nan_ok=True)
    assert "choose" in caught.value.message
    shard.open_session()


@pytest.mark.parametrize("token", [-1, 10**6])
def test_sampling_bias_outside_the_vocabulary_is_named(
    in_process_subject: Subject, open_shard: OpenShard, token: int
) -> None:
    """A bias for a token that is not there is refused and named."""
    shard = open_shard(in_process_subject)
    with pytest.raises(ShardError) as caught:
        shard.open_session(Sampling(logit_bias=[(5, 1.0), (token, 1.0)]))
    assert (caught.value.code, caught.value.fields["field"]) == ("argument", "sampling.logit_bias")
    assert str(token) in caught.value.message


def test_sampling_bias_past_the_vocabulary_is_refused(subject: Subject, open_shard: OpenShard) -> None:
    """A vocabulary ends where the description says."""
    shard = open_shard(subject)
    n_vocab = shard.description.n_vocab
    shard.close_session(shard.open_session(Sampling(logit_bias=[(n_vocab - 1, 1.0)])))
    with pytest.raises(ShardError) as caught:
        shard.open_session(Sampling(logit_bias=[(n_vocab, 1.0)]))
    assert (caught.value.code, caught.value.fields["actual"]) == ("argument", str(n_vocab))


@pytest.mark.parametrize("bias", [NAN, INFINITY, 2e6])
def test_sampling_bias_that_is_no_number_is_refused(
    in_process_subject: Subject, open_shard: OpenShard, bias: float
) -> None:
    """Only minus infinity bans; NaN, infinity and numbers past the range are refused."""
    shard = open_shard(in_process_subject)
    with pytest.raises(ShardError) as caught:
        shard.open_session(Sampling(logit_bias=[(5, bias)]))
    assert (caught.value.code, caught.value.fields["field"]) == ("argument", "sampling.logit_bias")


def test_draw_from_nothing_is_refused_and_the_session_kept(subject: Subject, open_shard: OpenShard) -> None:
    """A bias that bans every token is an error of the draw; the session is as it was before the step."""
    shard = open_shard(subject)
    n_vocab = shard.description.n_vocab
    banned = shard.open_session(Sampling(logit_bias=[(token, -INFINITY) for token in range(n_vocab)]))
    shard.forward(banned, 0, tokens=[5, 6])
    with pytest.raises(ShardError) as caught:
        shard.forward(banned, 2, tokens=[7], output="token")
    assert (caught.value.code, caught.value.fields["field"]) == ("argument", "sampling.logit_bias")
    assert shard.kv_cells_used() == 2
    assert shard.forward(banned, 2, tokens=[7], output="logits").length == 3


# ---- history ------------------------------------------------------------------------------------


def test_draw_with_penalties_over_unknown_rows_is_refused(subject: Subject, open_shard: OpenShard) -> None:
    """Penalties need the tokens of the rows that they look at; without them the session is kept as it was."""
    shard = open_shard(subject, layers=(3, 6))
    rows = input_rows(subject, open_shard, (3, 6))
    prompt = subject.model.prompts[0]
    session = shard.open_session(Sampling(repeat_penalty=1.5, repeat_last_n=3))
    shard.forward(session, 0, **rows(0, 6))
    with pytest.raises(ShardError) as caught:
        shard.forward(session, 6, tokens=prompt[6:8], output="token", **rows(6, 8))
    assert caught.value.code == "argument"
    assert "tokens with the hidden rows" in caught.value.message
    assert shard.kv_cells_used() == 6
    known = shard.forward(session, 6, tokens=prompt[6:9], output="token", **rows(6, 9))
    assert known.length == 9, "the rows that were not known are out of sight now"


def test_draw_without_penalties_needs_no_tokens(subject: Subject, open_shard: OpenShard) -> None:
    """A draw that looks at no earlier token is the same whether they were sent or not."""
    shard = open_shard(subject, layers=(3, 6))
    rows = input_rows(subject, open_shard, (3, 6))
    prompt, drawn = subject.model.prompts[0], []
    for tokens in (None, prompt[:6]):
        session = shard.open_session(Sampling(temperature=1.5, seed=11))
        drawn.append(shard.forward(session, 0, tokens=tokens, output="token", **rows(0, 6)).token)
    assert drawn[0] == drawn[1]


def test_history_is_trimmed_and_forked_with_the_rows(subject: Subject, open_shard: OpenShard) -> None:
    """Unknown rows that are trimmed away, or not forked, are no longer in the way of penalties."""
    shard = open_shard(subject, layers=(3, 6))
    rows, prompt = input_rows(subject, open_shard, (3, 6)), subject.model.prompts[0]
    sampling = Sampling(repeat_penalty=1.5, repeat_last_n=-1)
    session = shard.open_session(sampling)
    shard.forward(session, 0, tokens=prompt[:4], **rows(0, 4))
    shard.forward(session, 4, **rows(4, 6))
    with pytest.raises(ShardError):
        shard.forward(session, 6, tokens=prompt[6:7], output="token", **rows(6, 7))
    fork = shard.fork(session, 4, sampling).session
    shard.trim(session, 4)
    drawn = [
        shard.forward(one, 4, tokens=prompt[4:7], output="token", **rows(4, 7)).token
        for one in (session, fork)
    ]
    assert drawn[0] == drawn[1]


def test_tokens_beside_hidden_rows_must_be_tokens(subject: Subject, open_shard: OpenShard) -> None:
    """An id outside the vocabulary is refused on a stage that knows it; inner stages take any tokens."""
    rows = input_rows(subject, open_shard, (3, 6))
    last, inner = open_shard(subject, layers=(3, 6)), open_shard(subject, layers=(3, 5))
    session, n_vocab = last.open_session(), last.description.n_vocab
    with pytest.raises(ShardError) as caught:
        last.forward(session, 0, tokens=[5, n_vocab], **rows(0, 2))
    assert caught.value.code == "argument"
    assert str(n_vocab) in caught.value.message
    assert last.forward(session, 0, tokens=[5, 6], **rows(0, 2)).length == 2
    assert inner.forward(inner.open_session(), 0, tokens=[5, n_vocab], **rows(0, 2)).length == 2


# ---- grammars -----------------------------------------------------------------------------------


def test_grammar_is_refused_by_an_engine_without_grammars(
    fake_subject: Subject, open_shard: OpenShard
) -> None:
    """The fake engine says that it has none, rather than drawing without."""
    shard = open_shard(fake_subject)
    with pytest.raises(ShardError) as caught:
        shard.open_session(Sampling(grammar='root ::= "a"'))
    assert (caught.value.code, caught.value.fields["field"]) == ("unsupported", "sampling.grammar")


@pytest.mark.parametrize("subject", ["llama-in_process", "llama-worker"], indirect=True)
def test_grammar_governs_draws_and_their_replay(subject: Subject, open_shard: OpenShard) -> None:
    """Draws follow the grammar from its start on; a replay that gives the start draws the same."""
    chain, prompt = open_chain(open_shard, subject, (3,)), subject.model.prompts[0]
    grammar = Sampling(temperature=1.5, seed=5, grammar="root ::= [a-d]+")
    drawn = drawn_anew(chain, grammar, prompt)
    last = chain.shards[-1]
    text = b"".join(last.detokenize([token]) for token in drawn)
    assert set(text.strip()) <= set(b"abcd")
    replayed = chain.open_session(replace(grammar, grammar_start=len(prompt)))
    assert draw_many(chain, replayed, 0, [*prompt, *drawn[:5]], N_DRAWS - 5) == drawn[5:]


@pytest.mark.parametrize("subject", ["llama-in_process", "llama-worker"], indirect=True)
def test_grammar_that_cannot_be_parsed_is_malformed(subject: Subject, open_shard: OpenShard) -> None:
    """A grammar that is none is refused when the session is opened, and takes no session."""
    shard = open_shard(subject, max_sessions=1)
    with pytest.raises(ShardError) as caught:
        shard.open_session(Sampling(grammar="root ::= ("))
    assert (caught.value.code, caught.value.fields["field"]) == ("malformed", "sampling.grammar")
    shard.open_session()
