"""Draws: what llama.cpp's own samplers make of the same logits, again and again whatever happened to the
session, and what is refused."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp as llama
import numpy as np
import pytest

from shard_engine import Engine, Output, Recipe, Result, Sampling, ShardEngineError, Status

PROMPT = [1, 264, 270, 262, 99, 290, 281]
STEPS = 12
ALONE = Recipe(n_ctx=512, n_batch=64, n_ubatch=64, n_threads=1, kv_unified=False)
"""Each session has KV cells of its own, so that equal rows give equal logits in whatever company."""

WORDS = 'root ::= word (" " word)*\nword ::= [a-z]{1,4}'

SAMPLERS: dict[str, Sampling] = {
    "temperature": Sampling(temperature=0.7),
    "hot": Sampling(temperature=5.0),
    "top-k": Sampling(temperature=1.0, top_k=5),
    "top-k-of-all": Sampling(temperature=1.0, top_k=100_000),
    "typical": Sampling(temperature=1.0, typical_p=0.6),
    "top-p": Sampling(temperature=1.0, top_p=0.8),
    "min-p": Sampling(temperature=1.0, min_p=0.3),
    "repeat": Sampling(temperature=0.3, repeat_penalty=1.5, repeat_last_n=4),
    "repeat-less": Sampling(temperature=0.3, repeat_penalty=0.8, repeat_last_n=-1),
    "presence": Sampling(temperature=0.3, presence_penalty=0.9, repeat_last_n=1_000_000),
    "frequency": Sampling(temperature=0.3, frequency_penalty=0.4, repeat_last_n=-1),
    "bias": Sampling(temperature=1.0, logit_bias=[(270, 2.5), (264, -math.inf), (290, -1.0)]),
    "grammar": Sampling(temperature=1.0, grammar=WORDS),
    "all": Sampling(
        temperature=0.9,
        logit_bias=[(270, 1.0)],
        grammar=WORDS,
        repeat_penalty=1.2,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        top_k=40,
        typical_p=0.95,
        top_p=0.9,
        min_p=0.02,
    ),
    "greedy": Sampling(),
    "greedy-repeat": Sampling(repeat_penalty=1.5, repeat_last_n=8),
    "greedy-bias": Sampling(logit_bias=[(270, 1.0), (262, -math.inf)]),
    "greedy-grammar": Sampling(grammar=WORDS),
    "greedy-truncated": Sampling(typical_p=0.1, top_p=0.1, min_p=0.9, top_k=3),
}


def draw_seed(seed: int, position: int) -> int:
    """The seed of one draw, by the definition in shard_engine.h."""
    mask = 2**64 - 1
    z = ((seed << 32 | position) + 0x9E3779B97F4A7C15) & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    upper = (z ^ z >> 31) >> 32
    return 0 if upper == 2**32 - 1 else upper


class Library:
    """llama.cpp's samplers and nothing of ours: a new chain for every draw, fed with the whole history."""

    def __init__(self, path: Path) -> None:
        params = llama.llama_model_default_params()
        params.vocab_only = True
        self._model = llama.llama_model_load_from_file(str(path).encode(), params)
        assert self._model
        self._vocab = llama.llama_model_get_vocab(self._model)
        self._n_vocab = llama.llama_vocab_n_tokens(self._vocab)

    def close(self) -> None:
        llama.llama_model_free(self._model)

    def draw(
        self,
        sampling: Sampling,
        logits: bytes,
        history: Sequence[int],
        grammar_start: int,
        without: Container[int] = (),
    ) -> int:
        """The token that the chain takes after `history`, whose last row gave `logits`; no candidate is
        one of `without`."""
        values = np.frombuffer(logits, dtype=np.float32)
        tokens = [token for token in range(len(values)) if token not in without]
        candidates = (llama.llama_token_data * len(tokens))(
            *(llama.llama_token_data(token, float(values[token]), 0.0) for token in tokens)
        )
        array = llama.llama_token_data_array(candidates, len(tokens), -1, False)
        samplers = self._samplers(sampling, history, grammar_start)
        for sampler in samplers:
            llama.llama_sampler_apply(sampler, ctypes.byref(array))
            llama.llama_sampler_free(sampler)
        return int(array.data[array.selected].id)

    def _samplers(self, sampling: Sampling, history: Sequence[int], grammar_start: int) -> list[Any]:
        """In the order of shard_engine.h; the last one selects."""
        biases = [llama.llama_logit_bias(token, bias) for token, bias in sampling.logit_bias]
        array = (llama.llama_logit_bias * len(biases))(*biases)
        samplers = [llama.llama_sampler_init_logit_bias(self._n_vocab, len(biases), array)]
        if sampling.grammar:
            grammar = llama.llama_sampler_init_grammar(self._vocab, sampling.grammar.encode(), b"root")
            for token in history[grammar_start:]:
                llama.llama_sampler_accept(grammar, token)
            samplers.append(grammar)
        seen = len(history) if sampling.repeat_last_n < 0 else min(sampling.repeat_last_n, len(history))
        penalties = llama.llama_sampler_init_penalties(
            self._n_vocab,
            seen,
            sampling.repeat_penalty,
            sampling.frequency_penalty,
            sampling.presence_penalty,
        )
        for token in history:
            llama.llama_sampler_accept(penalties, token)
        samplers.append(penalties)
        if sampling.temperature == 0:
            return [*samplers, llama.llama_sampler_init_greedy()]
        return [
            *samplers,
            llama.llama_sampler_init_top_k(sampling.top_k),
            llama.llama_sampler_init_typical(sampling.typical_p, 1),
            llama.llama_sampler_init_top_p(sampling.top_p, 1),
            llama.llama_sampler_init_min_p(sampling.min_p, 1),
            llama.llama_sampler_init_temp(sampling.temperature),
            llama.llama_sampler_init_dist(draw_seed(sampling.seed, len(history))),
        ]


@pytest.fixture(scope="module")
def model(build_toy: Callable[[str], Path]) -> Path:
    """A toy with a vocabulary that can write any text."""
    return build_toy("llama-f32-untied")


@pytest.fixture(scope="module")
def library(model: Path) -> Iterator[Library]:
    """llama.cpp's samplers over the toy's vocabulary."""
    opened = Library(model)
    yield opened
    opened.close()


@pytest.fixture
def engine(model: Path) -> Iterator[Engine]:
    """The whole toy, with several sessions."""
    with Engine(model, recipe=ALONE, max_sessions=4) as opened:
        yield opened


def refused(call: Callable[[], object]) -> ShardEngineError:
    """The error that a call raises."""
    with pytest.raises(ShardEngineError) as caught:
        call()
    return caught.value


def continue_drawing(engine: Engine, session: int, tokens: Sequence[int], steps: int) -> list[Result]:
    """`steps` draws, each but the first from the token drawn before; `tokens` are the rows of the first."""
    results: list[Result] = []
    position = engine.session_length(session)
    for _ in range(steps):
        results.append(engine.forward(session, position, tokens=tokens, output=Output.TOKEN))
        position = results[-1].length
        tokens = [drawn(results[-1])]
    return results


def drawn(result: Result) -> int:
    """The token of a result, which must have one."""
    assert result.token is not None
    return result.token


@pytest.mark.parametrize("seed", [0, 42, 2**32 - 1])
@pytest.mark.parametrize("name", SAMPLERS)
def test_draw_equals_the_chain_of_the_library(engine: Engine, library: Library, name: str, seed: int) -> None:
    """Every sampler, and all of them together, takes the token that llama.cpp's chain takes."""
    sampling = replace(SAMPLERS[name], seed=seed)
    drawing, showing = engine.session_open(sampling), engine.session_open()
    history: list[int] = []
    tokens = PROMPT
    for _ in range(STEPS):
        position = len(history)
        history += tokens
        result = engine.forward(drawing, position, tokens=tokens, output=Output.TOKEN)
        rows = engine.forward(showing, position, tokens=tokens, output=Output.LOGITS).rows
        assert rows is not None
        assert result.token == library.draw(sampling, rows.data, history, len(PROMPT))
        check_logprob(result, rows.data)
        tokens = [drawn(result)]


@pytest.mark.parametrize("typical_p", [0.2, 0.6, 0.9])
def test_typical_sampling_beside_forbidden_tokens(engine: Engine, library: Library, typical_p: float) -> None:
    """It is typical among the others: of a probability of 0 llama.cpp's own sampler makes NaN."""
    banned = set(range(200, 260))
    sampling = Sampling(temperature=1.0, typical_p=typical_p)
    biased = replace(sampling, logit_bias=[(token, -math.inf) for token in banned])
    drawing, showing = engine.session_open(biased), engine.session_open()
    history: list[int] = []
    tokens = PROMPT
    for _ in range(STEPS):
        position = len(history)
        history += tokens
        result = engine.forward(drawing, position, tokens=tokens, output=Output.TOKEN)
        rows = engine.forward(showing, position, tokens=tokens, output=Output.LOGITS).rows
        assert rows is not None
        assert result.token == library.draw(sampling, rows.data, history, 0, without=banned)
        tokens = [drawn(result)]


def check_logprob(result: Result, logits: bytes) -> None:
    """The log-probability is that of the logits as computed, whatever the samplers did."""
    values = np.frombuffer(logits, dtype=np.float32).astype(np.float64)
    expected = values[drawn(result)] - values.max() - np.log(np.exp(values - values.max()).sum())
    assert result.logprob == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_seeds_draw_differently(engine: Engine) -> None:
    """The seed decides: ten of them do not all draw the same text."""
    texts = set()
    for seed in range(10):
        session = engine.session_open(Sampling(temperature=1.0, seed=seed))
        texts.add(tuple(map(drawn, continue_drawing(engine, session, PROMPT, 4))))
        engine.session_close(session)
    assert len(texts) > 5


@pytest.mark.parametrize("name", ["temperature", "repeat", "grammar", "all", "greedy-grammar"])
def test_replay_draws_the_same(engine: Engine, name: str) -> None:
    """A session that is opened again and given the rows so far goes on as the first one did."""
    sampling = SAMPLERS[name]
    first = engine.session_open(sampling)
    tokens = list(map(drawn, continue_drawing(engine, first, PROMPT, STEPS)))
    engine.session_close(first)
    again = engine.session_open(replace(sampling, grammar_start=7))
    engine.forward(again, 0, tokens=PROMPT)
    for number, token in enumerate(tokens[:5]):
        engine.forward(again, len(PROMPT) + number, tokens=[token])
    assert list(map(drawn, continue_drawing(engine, again, tokens[5:6], STEPS - 6))) == tokens[6:]


@pytest.mark.parametrize("name", ["temperature", "repeat", "frequency", "grammar", "all"])
def test_trim_takes_the_draws_back(engine: Engine, name: str) -> None:
    """After a trim the session draws as if the rows had never been."""
    session = engine.session_open(SAMPLERS[name])
    tokens = list(map(drawn, continue_drawing(engine, session, PROMPT, STEPS)))
    for kept in (9, 3, 0):
        engine.session_trim(session, len(PROMPT) + kept)
        again = continue_drawing(engine, session, tokens[kept : kept + 1], STEPS - kept - 1)
        assert list(map(drawn, again)) == tokens[kept + 1 :]
    engine.session_trim(session, 0)
    assert list(map(drawn, continue_drawing(engine, session, PROMPT, STEPS))) == tokens


@pytest.mark.parametrize("name", ["temperature", "repeat", "all"])
def test_fork_draws_as_its_source(engine: Engine, name: str) -> None:
    """A fork with the same sampling goes on as its source did, and the source is not disturbed."""
    sampling = replace(SAMPLERS[name], grammar_start=7)
    source = engine.session_open(sampling)
    tokens = list(map(drawn, continue_drawing(engine, source, PROMPT, STEPS)))
    fork = engine.session_fork(source, len(PROMPT) + 4, sampling).session
    assert list(map(drawn, continue_drawing(engine, fork, tokens[4:5], STEPS - 5))) == tokens[5:]
    (last,) = continue_drawing(engine, source, tokens[-1:], 1)
    assert drawn(continue_drawing(engine, fork, tokens[-1:], 1)[0]) == drawn(last)


def test_top_logprobs_are_the_best(engine: Engine) -> None:
    """Candidates come best first by the logits as computed, though most of them may not be drawn."""
    ban = Sampling(top_logprobs=20, logit_bias=[(token, -math.inf) for token in range(3, 290)])
    drawing, showing = engine.session_open(ban), engine.session_open()
    result = engine.forward(drawing, 0, tokens=PROMPT, output=Output.TOKEN)
    rows = engine.forward(showing, 0, tokens=PROMPT, output=Output.LOGITS).rows
    assert rows is not None
    values = np.frombuffer(rows.data, dtype=np.float32)
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    assert [candidate.token for candidate in result.top] == order[:20]
    log_sum = float(np.log(np.exp(values.astype(np.float64) - values.max()).sum()))
    for candidate in result.top:
        expected = float(values[candidate.token]) - float(values.max()) - log_sum
        assert candidate.logprob == pytest.approx(expected, rel=1e-6)


def test_top_logprobs_agree_with_the_draw(engine: Engine) -> None:
    """A greedy draw is the first candidate, bit for bit and with the same text."""
    session = engine.session_open(Sampling(top_logprobs=3))
    for result in continue_drawing(engine, session, PROMPT, STEPS):
        best = result.top[0]
        assert (best.token, best.logprob, best.text) == (result.token, result.logprob, result.text)
        assert len(result.top) == 3
    plain = engine.session_open()
    assert engine.forward(plain, 0, tokens=PROMPT, output=Output.TOKEN).top == ()


def test_grammar_is_obeyed_to_its_end(engine: Engine) -> None:
    """What is drawn spells a text of the grammar, and once it is whole only an end of generation follows."""
    session = engine.session_open(Sampling(temperature=2.0, grammar='root ::= "one" | "two" "!"'))
    results = continue_drawing(engine, session, PROMPT, 8)
    ends = [result.end_of_generation for result in results]
    first_end = ends.index(True)
    assert b"".join(result.text for result in results[:first_end]) in (b"one", b"two!")
    assert all(ends[first_end:])


def test_grammar_starts_where_it_is_told(engine: Engine) -> None:
    """Rows before `grammar_start` are the prompt's; those from it on must fit the grammar."""
    session = engine.session_open(Sampling(grammar='root ::= "the"', grammar_start=len(PROMPT)))
    engine.forward(session, 0, tokens=PROMPT)
    result = engine.forward(session, len(PROMPT), tokens=spelled(b"th"), output=Output.TOKEN)
    assert result.text == b"e"


def spelled(text: bytes) -> list[int]:
    """A text in byte tokens, which lie behind the three special ones."""
    return [3 + byte for byte in text]


def test_history_that_breaks_the_grammar_is_refused(engine: Engine) -> None:
    """A row that the grammar forbids is an error of that step alone: the session is as it was."""
    session = engine.session_open(Sampling(grammar='root ::= "abc"'))
    (first,) = continue_drawing(engine, session, PROMPT, 1)
    length, token = first.length, drawn(first)
    wrong = spelled(b"z")
    error = refused(lambda: engine.forward(session, length, tokens=wrong, output=Output.TOKEN))
    assert error.status == Status.ARGUMENT
    assert error.fields == {"row": str(length), "token": str(wrong[0])}
    assert engine.session_length(session) == length
    rest = continue_drawing(engine, session, [token], 3)
    text = b"".join(result.text for result in [first, *rest] if not result.end_of_generation)
    assert text == b"abc"


def test_end_of_generation_that_comes_too_early_is_refused(engine: Engine) -> None:
    """An end of generation in the rows, where the grammar is not finished, is refused and not fatal."""
    session = engine.session_open(Sampling(grammar='root ::= "abc"', grammar_start=0))
    eos = engine.vocabulary().eos
    error = refused(lambda: engine.forward(session, 0, tokens=[eos], output=Output.TOKEN))
    assert error.status == Status.ARGUMENT
    assert engine.session_length(session) == 0


@pytest.mark.parametrize("grammar", ["", 'root ::= "a"'])
def test_nothing_left_to_draw_is_refused(engine: Engine, grammar: str) -> None:
    """Where bias and grammar forbid every token, the step fails and the session is as it was."""
    n_vocab = engine.describe().n_vocab
    ban = [(token, -math.inf) for token in range(n_vocab)]
    session = engine.session_open(Sampling(temperature=1.0, logit_bias=ban, grammar=grammar))
    error = refused(lambda: engine.forward(session, 0, tokens=PROMPT, output=Output.TOKEN))
    assert error.status == Status.ARGUMENT
    assert error.fields == {"field": "sampling.grammar" if grammar else "sampling.logit_bias"}
    assert engine.session_length(session) == 0
    assert engine.forward(session, 0, tokens=PROMPT, output=Output.LOGITS).length == len(PROMPT)


@pytest.mark.parametrize("name", ["temperature", "repeat", "all", "greedy-repeat"])
def test_last_stage_draws_as_the_whole_model(engine: Engine, model: Path, cache_dir: Path, name: str) -> None:
    """Given tokens beside the hidden rows, the last stage of a chain draws what the unsplit model draws."""
    sampling = SAMPLERS[name]
    whole = list(map(drawn, continue_drawing(engine, engine.session_open(sampling), PROMPT, STEPS)))
    with (
        Engine(model, layers=(0, 3), recipe=ALONE, max_sessions=1, cache_dir=cache_dir) as first,
        Engine(model, layers=(3, 6), recipe=ALONE, max_sessions=1, cache_dir=cache_dir) as last,
    ):
        sessions = first.session_open(), last.session_open(sampling)
        tokens, position = PROMPT, 0
        for expected in whole:
            rows = first.forward(sessions[0], position, tokens=tokens, output=Output.HIDDEN).rows
            assert rows is not None
            result = last.forward(sessions[1], position, tokens=tokens, hidden=rows.data, output=Output.TOKEN)
            assert result.token == expected
            position, tokens = result.length, [expected]


@pytest.mark.parametrize("name", ["repeat", "grammar"])
def test_unknown_rows_cannot_be_looked_at(model: Path, cache_dir: Path, name: str) -> None:
    """Hidden rows without their tokens are refused where a sampler looks at them, and nowhere else."""
    with Engine(model, layers=(3, 6), recipe=ALONE, max_sessions=2, cache_dir=cache_dir) as last:
        hidden = np.full(last.describe().n_embd, 0.5, dtype=np.float32).tobytes()
        sampling = replace(SAMPLERS[name], grammar_start=0)
        session = last.session_open(sampling)
        error = refused(lambda: last.forward(session, 0, hidden=hidden, output=Output.TOKEN))
        assert (error.status, error.fields) == (Status.ARGUMENT, {"row": "0"})
        assert last.session_length(session) == 0
        plain = last.session_open(Sampling(temperature=1.0))
        assert last.forward(plain, 0, hidden=hidden, output=Output.TOKEN).token is not None


def test_refused_draw_leaves_the_penalties_as_they_were(model: Path, cache_dir: Path) -> None:
    """After a draw that was refused over unknown rows, and a trim, the rows before still count as seen."""
    sampling = Sampling(repeat_penalty=1000.0, repeat_last_n=2)
    with Engine(model, layers=(3, 6), recipe=ALONE, max_sessions=2, cache_dir=cache_dir) as last:
        hidden = np.full(last.describe().n_embd, 0.5, dtype=np.float32).tobytes()

        def draw(session: int, position: int, token: int | None) -> int:
            tokens = None if token is None else [token]
            return drawn(last.forward(session, position, tokens=tokens, hidden=hidden, output=Output.TOKEN))

        plain = last.session_open()
        best = [draw(plain, position, 99) for position in range(3)]
        disturbed = last.session_open(sampling)
        for position in range(3):
            draw(disturbed, position, best[2])
        last.session_close(plain)
        undisturbed = last.session_fork(disturbed, 3, sampling).session
        for position in range(3, 10):
            last.forward(disturbed, position, hidden=hidden)
        assert refused(lambda: draw(disturbed, 10, None)).status == Status.ARGUMENT
        last.session_trim(disturbed, 3)
        assert draw(disturbed, 3, 99) == draw(undisturbed, 3, 99)


BAD_VALUES: list[tuple[str, object]] = [
    ("temperature", -0.1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", 1e-9),
    ("top_k", -1),
    ("top_p", 0.0),
    ("top_p", 1.01),
    ("top_p", math.nan),
    ("min_p", -0.1),
    ("min_p", 1.5),
    ("typical_p", 0.0),
    ("typical_p", 2.0),
    ("repeat_penalty", 0.0),
    ("repeat_penalty", math.inf),
    ("presence_penalty", math.nan),
    ("presence_penalty", 1e9),
    ("frequency_penalty", -math.inf),
    ("repeat_last_n", -2),
    ("top_logprobs", 65),
    ("logit_bias", [(-1, 0.0)]),
    ("logit_bias", [(1_000_000, 0.0)]),
    ("logit_bias", [(5, math.nan)]),
    ("logit_bias", [(5, math.inf)]),
    ("logit_bias", [(5, 0.0)] * 4097),
    ("grammar", "#" * (64 * 1024 + 1)),
]


@pytest.mark.parametrize(("field", "value"), BAD_VALUES, ids=lambda value: str(value)[:24])
def test_value_out_of_range_is_refused(engine: Engine, field: str, value: object) -> None:
    """A value that a sampler cannot take is refused by its name, and no session is opened."""
    settings: dict[str, Any] = {field: value}
    error = refused(lambda: engine.session_open(Sampling(**settings)))
    assert error.status == Status.ARGUMENT
    assert error.fields["field"] == f"sampling.{field}"
    assert all(engine.session_open() >= 0 for _ in range(4))


BAD_GRAMMARS = {
    "syntax": ('root ::= "a', Status.MALFORMED),
    "no-root": ('other ::= "a"', Status.MALFORMED),
    "undefined-rule": ("root ::= other", Status.MALFORMED),
    "left-recursion": ('root ::= root "a" | "b"', Status.MALFORMED),
    "left-recursion-behind-a-rule": ('root ::= b root "z" | "x"\nb ::= c\nc ::= "" | "y"', Status.MALFORMED),
    "left-recursion-behind-an-option": ('root ::= ("y"?) root "z" | "x"', Status.MALFORMED),
    "left-recursion-repeated": ('root ::= "x" | a+\na ::= b\nb ::= (" "*) root', Status.MALFORMED),
    "repetition-backwards": ('root ::= "a"{5,3}', Status.MALFORMED),
    "repetition-backwards-spaced": ('root ::= "\\"" [^\\]"]{ 5 # more\n , 3}', Status.MALFORMED),
    "parentheses": ("root ::= " + "(" * 65 + '"a"' + ")" * 65, Status.MALFORMED),
    "unrolls-to-much": ("root ::= " + f'"{"a" * 200}"{{2000}}', Status.MALFORMED),
    "unrolls-nested": ('root ::= ("abc"{100}){1000} ' + '"abcdefgh"{2000} ' * 20, Status.MALFORMED),
    "token": ("root ::= <eos>", Status.UNSUPPORTED),
    "not-token": ('root ::= "a" !<[5]>', Status.UNSUPPORTED),
}


@pytest.mark.parametrize("name", BAD_GRAMMARS)
def test_grammar_that_cannot_be_used_is_refused(engine: Engine, name: str) -> None:
    """A grammar that llama.cpp cannot parse, or could not survive, opens no session."""
    grammar, status = BAD_GRAMMARS[name]
    error = refused(lambda: engine.session_open(Sampling(grammar=grammar)))
    assert error.status == status
    assert error.fields["field"] == "sampling.grammar"
    assert all(engine.session_open() >= 0 for _ in range(4))


GRAMMARS = [
    'root ::= "<" [^>]* ">" # <comment>',
    'root ::= "\\"" [<>!{}()]{2,3} "\\x41"',
    "root ::= ([a-c] | [^\\]d-f]){0,2000} .?",
    'root ::= ws "x" | more\nws ::= (" "?) ws | "y"\nmore ::= ("a" more)? "b"',
    'root ::= (("y"*)+ "z"?)* "."',
    'root ::= "é{9,1}" [{9,1}]',
]


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_grammar_with_special_characters_is_taken(engine: Engine, grammar: str) -> None:
    """What looks like a refused element inside a literal, a class or a comment is none."""
    session = engine.session_open(Sampling(temperature=1.0, grammar=grammar))
    assert len(continue_drawing(engine, session, PROMPT, 3)) == 3
