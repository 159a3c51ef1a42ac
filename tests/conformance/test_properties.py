"""Any sequence of opens, forwards, trims, forks, closes and cancels, against the rules in pure Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from conformance.fake_reference import FakeReference, as_rows
from conformance.in_process import InProcess, InProcessShard
from conformance.rules_model import Done, Feed, Limits, Refusal, RulesModel
from conformance.shard import Answer, Model, Rows, Shard, ShardError, Subject
from conformance.through_worker import ThroughWorker
from shard_engine import Recipe, Sampling

T = TypeVar("T")
Fault = tuple[str, int, int]

N_LAYER, N_VOCAB, CHUNK, MAX_SESSIONS = 3, 24, 40, 6
RECIPE = Recipe(n_ctx=256, n_batch=64, n_ubatch=2, prefill_chunk=CHUNK, n_threads=1)
UNKNOWN = 9999
"""An id that no session ever has."""

REFERENCES = {
    boundary: FakeReference(n_layer=N_LAYER, n_embd=3, n_vocab=N_VOCAB, boundary=boundary)
    for boundary in ("f32", "f16", "bf16")
}
"""Shared by all examples, because they keep their weights."""

SAMPLINGS = (
    Sampling(),
    Sampling(temperature=1.1, seed=3, top_k=12),
    Sampling(temperature=0.9, seed=4, top_p=0.8, min_p=0.05),
    Sampling(repeat_penalty=1.3, presence_penalty=20.0, repeat_last_n=4),
    Sampling(temperature=1.0, seed=5, presence_penalty=20.0, repeat_last_n=-1),
    Sampling(temperature=1.0, seed=6, logit_bias=[(2, 1.5), (3, float("-inf"))]),
)

samplings = st.sampled_from(SAMPLINGS)
picks = st.integers(0, 30)
"""Which open session, counted round; the last one stands for a session that nobody has."""
NOBODY = 30
tokens = st.builds(
    lambda first, stride, length: tuple((first + stride * i) % N_VOCAB for i in range(length)),
    st.integers(0, N_VOCAB - 1),
    st.integers(0, N_VOCAB - 1),
    st.one_of(st.just(1), st.integers(1, 4), st.integers(1, CHUNK)),
)
outputs = st.integers(0, 15)
"""Which output of those that the stage has, counted round; the last one stands for one that it has not."""
NOT_OWNED = 15
PLANS: tuple[tuple[Fault, ...], ...] = (
    (),
    (*(("fail-call", 2, step) for step in range(2, 18, 2)), *(("nan", 0, step) for step in range(3, 18, 3))),
    (
        *(("fail-call", 2, step) for step in range(1, 17, 2)),
        *(("fail-call", 1, step) for step in range(4, 20, 4)),
    ),
)
"""Faults of the steps of an engine: none; or in later calls of every other step, and some in whole steps."""
told = st.sampled_from([True, True, True, False])
"""Whether a stage that takes hidden rows is told their tokens."""


def fault_word(fault: Fault) -> str:
    name, call, step = fault
    return f"{name}:{call}@{step}" if call else f"{name}@{step}"


def outcome_of(call: Callable[[], T]) -> T | Refusal | ShardError:
    """What a call of the model or of a shard returns or refuses."""
    try:
        return call()
    except (Refusal, ShardError) as refusal:
        return refusal


class SessionsMachine(RuleBasedStateMachine):
    """One shard and the model of the rules, given the same calls."""

    def __init__(self, subject: Subject, seen: Counter[str]) -> None:
        super().__init__()
        self.subject = subject
        self.seen = seen
        self.shard: Shard | None = None

    def start(
        self, recipe: Recipe, layers: tuple[int, int], *, recurrent: bool, plan: Sequence[Fault] = ()
    ) -> None:
        reference = REFERENCES[recipe.boundary]
        limits = Limits(
            n_ctx=recipe.n_ctx,
            max_batch=recipe.n_batch,
            n_ubatch=recipe.n_ubatch,
            prefill_chunk=recipe.prefill_chunk,
            max_sessions=MAX_SESSIONS,
            kv_unified=recipe.kv_unified,
            can_trim=not recurrent,
            layers=layers,
            faults=tuple(plan),
        )
        self.model = RulesModel(limits, reference)
        options = self.subject.options(
            model=reference.specification + (",recurrent=1" if recurrent else ""),
            recipe=recipe,
            layers=layers,
            max_sessions=MAX_SESSIONS,
            fault_plan=",".join(map(fault_word, plan)) or None,
        )
        self.shard = self.subject.open(options)
        for sampling in SAMPLINGS[:3]:
            self.model.open(self.shard.open_session(sampling), sampling)

    def teardown(self) -> None:
        if self.shard is not None:
            self.shard.close()

    @property
    def opened(self) -> Shard:
        assert self.shard is not None
        return self.shard

    def pick(self, which: int) -> int:
        """The id of an open session, or one that no session has."""
        handles = sorted(self.model.sessions)
        return UNKNOWN if which == NOBODY or not handles else handles[which % len(handles)]

    def output(self, which: int) -> str:
        """What an entry asks for."""
        own = self.model.own_outputs
        if which == NOT_OWNED:
            return "hidden" if "token" in own else "token"
        if which >= len(own) and "token" in own:
            return "token"  # most often, because a draw looks at all that a session remembers
        return own[which % len(own)]

    def length(self, session: int) -> int:
        return len(self.model.sessions[session].rows) if session in self.model.sessions else 0

    # ---- rules

    @rule(sampling=samplings)
    def open_session(self, sampling: Sampling) -> None:
        actual = outcome_of(lambda: self.opened.open_session(sampling))
        handle = actual if isinstance(actual, int) else UNKNOWN
        expected = outcome_of(lambda: self.model.open(handle, sampling))
        if isinstance(expected, Refusal):
            self.check_refusal(expected, actual)
        else:
            assert isinstance(actual, int)

    @rule(which=picks, position=st.integers(0, 300), sampling=samplings)
    def fork(self, which: int, position: int, sampling: Sampling) -> None:
        """Anywhere, and one past the end as well."""
        source = self.pick(which)
        self.fork_at(source, position % (self.length(source) + 2), sampling)

    @rule(which=picks, sampling=samplings)
    def fork_at_the_end(self, which: int, sampling: Sampling) -> None:
        source = self.pick(which)
        self.fork_at(source, self.length(source), sampling)

    def fork_at(self, source: int, position: int, sampling: Sampling) -> None:
        actual = outcome_of(lambda: self.opened.fork(source, position, sampling))
        handle = UNKNOWN if isinstance(actual, Refusal | ShardError) else actual.session
        expected = outcome_of(lambda: self.model.fork(handle, source, position, sampling))
        if isinstance(expected, Refusal):
            self.check_refusal(expected, actual)
        else:
            assert not isinstance(actual, Refusal | ShardError), actual
            assert actual.kv_cells_taken == expected
            self.seen["fork shared" if self.model.limits.kv_unified else "fork copied"] += 1

    @rule(which=picks, position=st.integers(0, 300))
    def trim(self, which: int, position: int) -> None:
        """Anywhere, and one past the end as well."""
        session = self.pick(which)
        self.trim_to(session, position % (self.length(session) + 2))

    @rule(which=picks, back=st.integers(0, 3))
    def trim_near_the_end(self, which: int, back: int) -> None:
        session = self.pick(which)
        self.trim_to(session, max(0, self.length(session) - back))

    def trim_to(self, session: int, position: int) -> None:
        self.check_freed(
            outcome_of(lambda: self.model.trim(session, position)),
            outcome_of(lambda: self.opened.trim(session, position)),
        )

    @precondition(lambda self: len(self.model.sessions) > 1)
    @rule(which=picks)
    def close(self, which: int) -> None:
        session = self.pick(which)
        self.check_freed(
            outcome_of(lambda: self.model.close(session)),
            outcome_of(lambda: self.opened.close_session(session)),
        )

    def check_freed(self, expected: int | Refusal | ShardError, actual: object) -> None:
        if isinstance(expected, Refusal):
            self.check_refusal(expected, actual)
        else:
            assert actual == expected

    @rule(which=picks, rows=tokens, output=outputs, known=told)
    def forward(self, which: int, rows: tuple[int, ...], output: int, known: bool) -> None:
        self.check_step([self.feed(which, rows, output, known)])

    @rule(which=picks, rows=tokens, off=st.sampled_from([-1, 1, 7]))
    def forward_elsewhere(self, which: int, rows: tuple[int, ...], off: int) -> None:
        feed = self.feed(which, rows, 0, known=True)
        self.check_step([replace(feed, position=max(0, feed.position + off))])

    def feed(self, which: int, rows: tuple[int, ...], output: int, known: bool) -> Feed:
        """Rows that follow those of a session."""
        session = self.pick(which)
        return Feed(
            session=session,
            position=self.length(session),
            tokens=rows,
            output=self.output(output),
            known=known,
        )

    # ---- checks

    def check_refusal(self, expected: Refusal, actual: object) -> None:
        """The same code, and every figure that the model knows."""
        assert isinstance(actual, ShardError), actual
        assert actual.code == expected.code
        assert expected.fields.items() <= actual.fields.items()
        self.seen[expected.code] += 1

    def rows_of(self, feed: Feed) -> Rows:
        """The entry as the shard is given it: later stages take the rows that the layers before made."""
        first, boundary = self.model.limits.layers[0], self.model.reference.boundary
        made = self.model.continued(feed) if first > 0 else []
        return Rows(
            session=feed.session,
            position=feed.position,
            tokens=feed.tokens if feed.known or first == 0 else None,
            hidden=b"".join(as_rows(row.after_layers[first], boundary) for row in made) if made else None,
            output=feed.output,
        )

    def check_step(self, feeds: list[Feed]) -> None:
        entries = [self.rows_of(feed) for feed in feeds]
        actual = outcome_of(lambda: self.opened.forward_many(entries))
        expected = self.model.step(feeds)
        if isinstance(actual, ShardError):
            # Nothing of the step was done: the error is that of the step, and of each entry that was in it.
            assert all(isinstance(outcome, Refusal) for outcome in expected)
            assert actual.code in {outcome.code for outcome in expected if isinstance(outcome, Refusal)}
            self.seen[f"step {actual.code}"] += 1
            return
        assert not isinstance(actual, Refusal)
        if {"backend"} < {outcome.code if isinstance(outcome, Refusal) else "ok" for outcome in expected}:
            self.seen["step half done"] += 1
        for one, other in zip(expected, actual, strict=True):
            self.check_outcome(one, other)

    def check_outcome(self, expected: Done | Refusal, actual: Answer | ShardError) -> None:
        if isinstance(expected, Refusal):
            self.check_refusal(expected, actual)
            return
        assert isinstance(actual, Answer), actual
        assert (actual.values, actual.token) == (expected.values, expected.token)
        assert actual.length == expected.length
        self.seen["values" if actual.values else "none" if actual.token is None else "token"] += 1

    @invariant()
    def cells_are_the_distinct_rows(self) -> None:
        if self.shard is not None:
            assert self.shard.kv_cells_used() == self.model.kv_cells_used


class InProcessMachine(SessionsMachine):
    """An engine in process, which can be given whole steps, a cancel, and faults by the step."""

    @initialize(
        kv_unified=st.booleans(),
        boundary=st.sampled_from(["f32", "f16", "bf16"]),
        layers=st.sampled_from([(0, 3), (1, 3), (0, 3), (0, 1), (1, 2)]),
        recurrent=st.booleans(),
        plan=st.sampled_from(PLANS),
    )
    def open_engine(
        self,
        kv_unified: bool,
        boundary: str,
        layers: tuple[int, int],
        recurrent: bool,
        plan: tuple[Fault, ...],
    ) -> None:
        recipe = replace(RECIPE, kv_unified=kv_unified, boundary=boundary)
        self.start(recipe, layers, recurrent=recurrent, plan=plan)

    @rule(
        first=st.integers(0, MAX_SESSIONS - 1),
        entries=st.lists(st.tuples(tokens, outputs, told), min_size=2, max_size=MAX_SESSIONS + 1),
    )
    def step(self, first: int, entries: list[tuple[tuple[int, ...], int, bool]]) -> None:
        """Entries of the sessions in turn; where there are more entries, a session is there twice."""
        feeds = [self.feed(first + index, *entry) for index, entry in enumerate(entries)]
        self.check_step(feeds)

    @precondition(lambda self: self.model.n_steps % 3 == 2)
    @rule()
    def cancel(self) -> None:
        """Without a step, a cancel stops the next one that computes anything."""
        assert isinstance(self.opened, InProcessShard)
        self.opened.engine.cancel()
        self.model.cancel_is_due = True

    @invariant()
    def lengths_are_those_of_the_model(self) -> None:
        if isinstance(self.shard, InProcessShard):
            for session in self.model.sessions:
                assert self.shard.engine.session_length(session) == self.length(session)


class WorkerMachine(SessionsMachine):
    """A worker, which composes steps by itself: one forward at a time."""

    @initialize(kv_unified=st.booleans(), layers=st.sampled_from([(0, 3), (1, 3)]), recurrent=st.booleans())
    def open_worker(self, kv_unified: bool, layers: tuple[int, int], recurrent: bool) -> None:
        self.start(replace(RECIPE, kv_unified=kv_unified), layers, recurrent=recurrent)


def run(machine: type[SessionsMachine], subject: Subject, *, examples: int, steps: int) -> Counter[str]:
    """Drives machines of that kind, the same ones in every run. Returns what they met, and how often."""
    seen: Counter[str] = Counter()

    class Machine(machine):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__(subject, seen)

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            # Shrinking would take longer than a test may, and hide the calls that failed behind a timeout.
            phases=(Phase.generate,),
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
    return seen


MODEL = Model(path="fake:", n_layer=N_LAYER)


def check_seen(seen: Counter[str], note: Callable[[str], None], *least: str) -> None:
    """Rules that meet nothing but sessions that are not there would hold of any engine. Asked for is what any
    run meets often: the calls are the same in each run of the same tests, but not beside other ones, because
    Hypothesis draws from the constants of all modules that are loaded."""
    note(f"met by random calls: {', '.join(f'{name} {count}' for name, count in sorted(seen.items()))}")
    assert set(least) <= seen.keys()


def test_properties_of_sessions_in_process(tmp_path: Path, note: Callable[[str], None]) -> None:
    """Statuses, figures, cells, lengths, rows and draws are those of the rules, whatever is called."""
    seen = run(InProcessMachine, InProcess("fake", MODEL, tmp_path), examples=60, steps=30)
    refused = ("argument", "backend", "capacity", "no_session", "non_finite", "not_owned", "position")
    done = ("token", "values", "none", "fork shared", "fork copied", "step half done")
    check_seen(seen, note, *done, *refused)


def test_properties_of_sessions_through_the_worker(tmp_path: Path, note: Callable[[str], None]) -> None:
    """A worker keeps the same rules."""
    seen = run(WorkerMachine, ThroughWorker("fake", MODEL, tmp_path), examples=20, steps=30)
    check_seen(seen, note, "token", "none", "fork shared", "capacity", "no_session", "position")
