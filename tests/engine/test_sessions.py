"""Sessions of the llama engine in company: forked, joined and left alone, cut short, cancelled and undone,
with every kind of memory that llama.cpp has."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from shard_engine import Engine, Entry, Output, Recipe, Result, Sampling, ShardEngineError, Status
from tally import Tally
from toy.architectures import VARIANTS
from toy.architectures import build as build_variant

STREAMS = Recipe(n_ctx=512, n_batch=256, n_ubatch=32, prefill_chunk=64, n_threads=1, kv_unified=False)
"""The recipe under which a session's results depend on nothing but its own rows."""
UNIFIED = replace(STREAMS, kv_unified=True, prefill_chunk=32)

CELLS, STATE, BOTH, WINDOW = "llama-q8_0-tied", "mamba", "jamba", "gemma3"
KINDS = [CELLS, STATE, BOTH, WINDOW]
"""Toys whose sessions keep KV cells, one recurrent state, both, and cells of a sliding window."""
RECURRENT = [STATE, BOTH]
COMPRESSED = "deepseek4"
"""A toy whose sessions keep a state and cells of a window, of which llama.cpp serves whole models only."""


@pytest.fixture
def build_any(build_toy: Callable[[str], Path], toy_folder: Path) -> Callable[[str], Path]:
    """Makes the toy of a kind, or of an architecture variant."""
    return lambda kind: build_variant(VARIANTS[kind], toy_folder) if kind in VARIANTS else build_toy(kind)


def some_tokens(n: int, seed: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(3, 250, n)]


def entry(session: int, position: int, tokens: Sequence[int], output: Output = Output.LOGITS) -> Entry:
    return Entry(session=session, position=position, tokens=tokens, output=output)


def logits_of(result: Result) -> bytes:
    if result.error is not None:
        raise result.error
    assert result.rows is not None
    return result.rows.data


def prefill(engine: Engine, tokens: Sequence[int]) -> int:
    """A new session with these rows, sent in pieces of prefill_chunk."""
    session, chunk = engine.session_open(), engine.describe().recipe.prefill_chunk
    for start in range(0, len(tokens), chunk):
        engine.forward(session, start, tokens=tokens[start : start + chunk])
    return session


def decode(engine: Engine, session: int, tokens: Sequence[int]) -> bytes:
    """The logits of each token, sent one at a time and alone."""
    rows = b""
    for token in tokens:
        position = engine.session_length(session)
        rows += logits_of(engine.forward(session, position, tokens=[token], output=Output.LOGITS))
    return rows


# ---- company


@dataclass(slots=True)
class Visitor:
    """A session that comes at some step, sends its prompt and then its tokens one by one, and leaves."""

    comes: int
    prompt: list[int]
    tokens: list[int]
    session: int = -1
    sent: int = 0
    logits: bytes = field(default=b"")

    def rest(self, chunk: int) -> list[int]:
        """What it sends next: a piece of the prompt, or one token."""
        if self.sent < len(self.prompt):
            return self.prompt[self.sent : self.sent + chunk]
        return self.tokens[self.sent - len(self.prompt) :][:1]

    def run_alone(self, engine: Engine) -> bytes:
        session = prefill(engine, self.prompt)
        rows = decode(engine, session, self.tokens)
        engine.session_close(session)
        return rows


def run_together(engine: Engine, visitors: Sequence[Visitor]) -> None:
    """All visitors in shared steps, as many rows in each as fit."""
    chunk, max_batch = engine.describe().recipe.prefill_chunk, engine.describe().max_batch
    present: list[Visitor] = []
    for step in range(200):
        for visitor in [visitor for visitor in visitors if visitor.comes == step]:
            visitor.session = engine.session_open()
            present.append(visitor)
        sending: list[tuple[Visitor, list[int]]] = []
        left = max_batch
        for visitor in reversed(present) if step % 2 else present:
            tokens = visitor.rest(chunk)
            if len(tokens) <= left:
                sending.append((visitor, tokens))
                left -= len(tokens)
        results = engine.step([entry(who.session, who.sent, tokens) for who, tokens in sending])
        for (who, tokens), result in zip(sending, results, strict=True):
            rows = logits_of(result)
            who.logits += rows if who.sent >= len(who.prompt) else b""
            who.sent += len(tokens)
            if not who.rest(chunk):
                engine.session_close(who.session)
                present.remove(who)
        if not present and step >= max(visitor.comes for visitor in visitors):
            return
    raise AssertionError("the visitors did not come to an end")


@pytest.mark.parametrize("kind", [CELLS, STATE, "gemma3-q8_0"])
def test_sessions_in_company_compute_as_alone(
    kind: str, build_any: Callable[[str], Path], tally: Tally
) -> None:
    """With cells of its own each session gives the bits that it gives alone, whoever comes and goes."""
    lengths = [1, 5, 33, 64, 90, 150, 31, 200]
    visitors = [
        Visitor(comes=(3 * i) % 7, prompt=some_tokens(length, i), tokens=some_tokens(6 + i, 50 + i))
        for i, length in enumerate(lengths)
    ]
    with Engine(build_any(kind), recipe=STREAMS, max_sessions=len(lengths)) as engine:
        run_together(engine, visitors)
        assert engine.kv_cells_used() == 0
        for visitor in visitors:
            tally.check(visitor.run_alone(engine), visitor.logits, f"{kind}, {len(visitor.prompt)} rows")


# ---- forks


@pytest.mark.parametrize("recipe", [STREAMS, UNIFIED], ids=["streams", "unified"])
@pytest.mark.parametrize("kind", KINDS)
def test_fork_goes_on_as_a_fresh_prefill(
    kind: str, recipe: Recipe, build_any: Callable[[str], Path], tally: Tally
) -> None:
    """A fork, and the session it came from, give the bits of a session that was sent all the rows."""
    prompt, tokens, others = some_tokens(40, 1), some_tokens(6, 2), some_tokens(6, 3)
    with Engine(build_any(kind), recipe=recipe) as engine:
        fresh = decode(engine, prefill(engine, prompt), tokens)
        engine.session_close(0)
        source = prefill(engine, prompt)
        fork = engine.session_fork(source, len(prompt)).session
        decode(engine, source, others)
        tally.check(fresh, decode(engine, fork, tokens), f"{kind} forked")
        assert engine.session_length(source) == engine.session_length(fork) == len(prompt) + len(tokens)
        engine.session_close(source)
        engine.session_close(fork)
        assert engine.kv_cells_used() == 0


@pytest.mark.parametrize("recipe", [STREAMS, UNIFIED], ids=["streams", "unified"])
def test_fork_in_the_middle_is_independent(
    recipe: Recipe, build_any: Callable[[str], Path], tally: Tally
) -> None:
    """A fork keeps the first rows only, and trimming either below the fork does not disturb the other."""
    prompt, tokens = some_tokens(40, 4), some_tokens(5, 5)
    with Engine(build_any(CELLS), recipe=recipe) as engine:
        short = decode(engine, prefill(engine, prompt[:24]), tokens)
        engine.session_close(0)
        source = prefill(engine, prompt)
        first = engine.session_fork(source, 24).session
        second = engine.session_fork(source, 24).session
        engine.session_trim(first, 8)
        tally.check(short, decode(engine, second, tokens), "beside a trimmed fork")
        engine.session_trim(source, 10)
        third = engine.session_fork(second, 24).session
        engine.session_close(second)
        tally.check(short, decode(engine, third, tokens), "after its source was closed")


def test_fork_shares_the_cells_of_common_rows(build_any: Callable[[str], Path]) -> None:
    """With one cache for all, a common row takes one cell until the last session lets go of it."""
    with Engine(build_any(CELLS), recipe=UNIFIED) as engine:
        source = prefill(engine, some_tokens(40, 6))
        forked = engine.session_fork(source, 24)
        assert (forked.kv_cells_taken, engine.kv_cells_used()) == (0, 40)
        decode(engine, forked.session, some_tokens(4, 7))
        assert engine.kv_cells_used() == 44
        assert engine.session_trim(forked.session, 20) == 4
        assert engine.session_close(source) == 20
        assert engine.session_close(forked.session) == 20
        assert engine.kv_cells_used() == 0


def test_fork_copies_the_cells_of_streams(build_any: Callable[[str], Path]) -> None:
    """With a stream for each session a fork takes cells of its own, and gives them back."""
    with Engine(build_any(CELLS), recipe=STREAMS) as engine:
        source = prefill(engine, some_tokens(40, 6))
        forked = engine.session_fork(source, 24)
        assert (forked.kv_cells_taken, engine.kv_cells_used()) == (24, 64)
        assert engine.session_close(source) == 40
        assert engine.session_close(forked.session) == 24


def test_forks_of_forks_before_any_step(build_any: Callable[[str], Path], tally: Tally) -> None:
    """Copies between streams that are still to be made come in their order, though sessions were closed and
    opened again in between."""
    prompt, tokens = some_tokens(30, 8), some_tokens(4, 9)
    with Engine(build_any(CELLS), recipe=STREAMS, max_sessions=3) as engine:
        fresh = decode(engine, prefill(engine, prompt), tokens)
        engine.session_close(0)
        source = prefill(engine, prompt)
        first = engine.session_fork(source, 30).session
        second = engine.session_fork(first, 30).session
        engine.session_close(first)
        engine.session_close(source)
        again = engine.session_fork(second, 20).session
        engine.session_close(again)
        tally.check(fresh, decode(engine, second, tokens), "fork of a fork")


def test_fork_refusals(build_any: Callable[[str], Path]) -> None:
    """A fork names an open session and a position in it, and needs a free session."""
    with Engine(build_any(CELLS), recipe=UNIFIED, max_sessions=2) as engine:
        source = prefill(engine, some_tokens(8, 10))
        for position, session, status in [(9, source, Status.POSITION), (0, 1, Status.NO_SESSION)]:
            with pytest.raises(ShardEngineError) as refused:
                engine.session_fork(session, position)
            assert refused.value.status == status
        engine.session_fork(source, 0)
        with pytest.raises(ShardEngineError) as refused:
            engine.session_fork(source, 8)
        assert refused.value.status == Status.CAPACITY
        assert engine.kv_cells_used() == 8


# ---- recurrent states


@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_session_is_cut_at_its_ends_only(kind: str, build_any: Callable[[str], Path]) -> None:
    """What a recurrent state cannot do is refused and changes nothing; its length and 0 are allowed."""
    with Engine(build_any(kind), recipe=UNIFIED) as engine:
        assert not engine.describe().can_trim
        session = prefill(engine, some_tokens(20, 11))
        for cut in (engine.session_trim, engine.session_fork):
            with pytest.raises(ShardEngineError, match="can_trim") as refused:
                cut(session, 19)
            assert refused.value.status == Status.UNSUPPORTED
        assert (engine.session_length(session), engine.kv_cells_used()) == (20, 20)
        assert engine.session_trim(session, 20) == 0
        assert engine.session_trim(session, 0) == 20


def test_fork_that_is_copied_late_is_refused(build_any: Callable[[str], Path]) -> None:
    """Where a fork could not be undone after a failed step, it is refused and nothing changes."""
    with Engine(build_any(COMPRESSED), recipe=UNIFIED) as engine:
        session = prefill(engine, some_tokens(20, 25))
        with pytest.raises(ShardEngineError, match="cannot be forked") as refused:
            engine.session_fork(session, 20)
        assert refused.value.status == Status.UNSUPPORTED
        assert (engine.session_fork(session, 0).kv_cells_taken, engine.kv_cells_used()) == (0, 20)


# ---- undoing


@pytest.mark.parametrize("recipe", [STREAMS, UNIFIED], ids=["streams", "unified"])
@pytest.mark.parametrize("kind", [*KINDS, COMPRESSED])
def test_failed_draw_leaves_the_session_as_it_was(
    kind: str, recipe: Recipe, build_any: Callable[[str], Path], tally: Tally
) -> None:
    """A row that was computed and then failed is undone, in the cells and in the state, beside others."""
    prompt, tokens = some_tokens(20, 12), [7, 8, 9]
    with Engine(build_any(kind), recipe=recipe) as engine:
        fresh = decode(engine, prefill(engine, prompt), tokens)
        engine.session_close(0)
        nothing = Sampling(logit_bias=[(token, -math.inf) for token in range(engine.describe().n_vocab)])
        session, other = engine.session_open(nothing), prefill(engine, prompt)
        engine.forward(session, 0, tokens=prompt)
        failed, done = engine.step([entry(session, 20, [5], Output.TOKEN), entry(other, 20, [5])])
        assert (failed.status, done.status) == (Status.ARGUMENT, Status.OK)
        assert (engine.session_length(session), engine.kv_cells_used()) == (20, 41)
        tally.check(fresh, decode(engine, session, tokens), f"{kind} after a failed draw")


# ---- cancelling


@contextmanager
def cancelled_after(engine: Engine, n_nodes: int) -> Iterator[None]:
    """Cancels the step that runs in the body once it has computed so many graph nodes."""
    start, is_over = engine.progress(), threading.Event()

    def watch() -> None:
        while engine.progress() - start < n_nodes and not is_over.is_set():
            pass
        engine.cancel()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join(timeout=60)


def nodes_of_a_row(engine: Engine, session: int) -> int:
    """Graph nodes of a call with one row."""
    before = engine.progress()
    decode(engine, session, [5])
    return engine.progress() - before


@pytest.mark.parametrize("recipe", [STREAMS, UNIFIED], ids=["streams", "unified"])
@pytest.mark.parametrize("kind", [*KINDS, COMPRESSED])
def test_cancel_in_a_later_call_leaves_earlier_entries_done(
    kind: str, recipe: Recipe, build_any: Callable[[str], Path], tally: Tally
) -> None:
    """The entries of one row are done when a long one is cancelled, which is then as it was and goes on."""
    recipe = replace(recipe, n_ctx=2048, n_batch=1024, n_ubatch=1000, prefill_chunk=1000)
    long = some_tokens(1000, 13)
    with Engine(build_any(kind), recipe=recipe) as engine:
        short, other = prefill(engine, some_tokens(9, 14)), prefill(engine, some_tokens(9, 15))
        fresh = decode(engine, other, [7, 8])
        engine.session_close(other)
        other = prefill(engine, some_tokens(9, 15))
        n_nodes = nodes_of_a_row(engine, short)
        with cancelled_after(engine, n_nodes + 1):
            long_result, short_result = engine.step([entry(other, 9, long), entry(short, 10, [6])])
        assert (short_result.status, long_result.status) == (Status.OK, Status.CANCELLED)
        assert (engine.session_length(short), engine.session_length(other)) == (11, 9)
        assert engine.kv_cells_used() == 20
        tally.check(fresh, decode(engine, other, [7, 8]), f"{kind} after a cancel")


def test_cancel_before_a_step_undoes_all_of_it(build_any: Callable[[str], Path]) -> None:
    """A step that is stopped at its beginning has changed no session."""
    with Engine(build_any(BOTH), recipe=STREAMS) as engine:
        session = prefill(engine, some_tokens(9, 16))
        engine.cancel()
        with pytest.raises(ShardEngineError) as refused:
            engine.forward(session, 9, tokens=[5])
        assert refused.value.status == Status.CANCELLED
        assert engine.session_length(session) == engine.kv_cells_used() == 9
        engine.forward(session, 9, tokens=[5])


# ---- sliding windows and capacity


def test_window_that_others_took_cannot_be_cut(build_any: Callable[[str], Path]) -> None:
    """Rows behind a sliding window may lose their cells to others; a cut that needs them is refused."""
    recipe = replace(UNIFIED, n_ctx=256)
    with Engine(build_any(WINDOW), recipe=recipe) as engine:
        first, second = (prefill(engine, some_tokens(100, seed)) for seed in (17, 18))
        assert engine.session_trim(second, 90) == 10
        engine.session_close(first)
        prefill(engine, some_tokens(150, 19))
        for cut in (engine.session_trim, engine.session_fork):
            with pytest.raises(ShardEngineError, match="kv_unified off") as refused:
                cut(second, 50)
            assert refused.value.status == Status.UNSUPPORTED
        assert engine.session_length(second) == 90
        decode(engine, second, [5])
        assert engine.session_trim(second, 0) == 91


def test_session_fills_its_own_cells_only(build_any: Callable[[str], Path]) -> None:
    """With streams a session has n_ctx cells, however many others have left, and is told both figures."""
    recipe = replace(STREAMS, n_ctx=256, prefill_chunk=256)
    with Engine(build_any(CELLS), recipe=recipe, max_sessions=2) as engine:
        loaded = engine.describe()
        assert (loaded.session_cells, loaded.kv_cells) == (256, 512)
        session = prefill(engine, some_tokens(250, 20))
        with pytest.raises(ShardEngineError) as refused:
            engine.forward(session, 250, tokens=some_tokens(7, 21))
        assert refused.value.status == Status.CAPACITY
        assert (refused.value.fields["needed"], refused.value.fields["available"]) == ("7", "6")
        prefill(engine, some_tokens(256, 22))
        assert engine.kv_cells_used() == 506


def test_piece_longer_than_the_recipe_says_is_refused(build_any: Callable[[str], Path]) -> None:
    """The pieces of a prefill decide its bits, so that no longer one is taken than the recipe says."""
    with Engine(build_any(CELLS), recipe=UNIFIED) as engine:
        with pytest.raises(ShardEngineError, match="prefill_chunk") as refused:
            engine.forward(engine.session_open(), 0, tokens=some_tokens(33, 23))
        assert (refused.value.status, engine.kv_cells_used()) == (Status.CAPACITY, 0)


def test_prefill_chunk_is_settled(build_any: Callable[[str], Path]) -> None:
    """A chunk of 0 is n_ubatch, and the description says so."""
    with Engine(build_any(CELLS), recipe=replace(UNIFIED, prefill_chunk=0)) as engine:
        assert engine.describe().recipe.prefill_chunk == 32


# ---- boundaries


def to_bf16(rows: npt.NDArray[np.float32]) -> bytes:
    bits = rows.view("<u4").astype("u8")
    rounded: bytes = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    return rounded


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_boundary_rows_are_rounded_once(
    dtype: str, build_any: Callable[[str], Path], cache_dir: Path, tally: Tally
) -> None:
    """Hidden rows leave as the nearest values of the boundary dtype, and come in as exactly these."""
    tokens, model = some_tokens(20, 24), build_any(CELLS)
    half = replace(STREAMS, boundary=dtype)
    with (
        Engine(model, layers=(0, 2), recipe=STREAMS, cache_dir=cache_dir) as exact,
        Engine(model, layers=(0, 2), recipe=half, cache_dir=cache_dir) as first,
    ):
        rows, packed = (
            engine.forward(engine.session_open(), 0, tokens=tokens, output=Output.HIDDEN).rows
            for engine in (exact, first)
        )
    assert rows is not None
    assert packed is not None
    values = np.frombuffer(rows.data, "<f4")
    expected = to_bf16(values) if dtype == "bf16" else values.astype("<f2").tobytes()
    assert (packed.dtype, packed.data) == (dtype, expected)
    raw = np.frombuffer(packed.data, "<f2" if dtype == "f16" else "<u2")
    wide = raw.astype("<f4") if dtype == "f16" else (raw.astype("<u4") << 16).view("<f4")
    with (
        Engine(model, layers=(2, 0), recipe=STREAMS, cache_dir=cache_dir) as exact,
        Engine(model, layers=(2, 0), recipe=half, cache_dir=cache_dir) as last,
    ):
        logits = [
            logits_of(engine.forward(engine.session_open(), 0, hidden=data, output=Output.LOGITS_ALL))
            for engine, data in ((exact, wide.tobytes()), (last, packed.data))
        ]
    tally.check(logits[0], logits[1], f"{dtype} boundary")
