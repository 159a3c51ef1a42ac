"""The rules of sessions and steps once more, in pure Python: what the fake engine must answer to anything.

A session is a list of rows. A row is one object, which sessions that were forked share, so that the KV cells
in use are the distinct rows there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from conformance.fake_reference import FakeReference, ReferenceSession, as_floats, as_rows, draw
from shard_engine import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an engine was opened with."""

    n_ctx: int
    max_batch: int
    n_ubatch: int
    prefill_chunk: int
    max_sessions: int
    kv_unified: bool
    can_trim: bool
    layers: tuple[int, int]
    faults: tuple[tuple[str, int, int], ...] = ()
    """Words of a fault plan: (`nan`, 0, step) or (`fail-call`, call, step)."""

    @property
    def kv_cells(self) -> int:
        return self.n_ctx * (1 if self.kv_unified else self.max_sessions)


class Refusal(Exception):
    """What is refused, with the fields that say by how much."""

    def __init__(self, code: str, **fields: int) -> None:
        super().__init__(code)
        self.code = code
        self.fields = {name: str(value) for name, value in fields.items()}


@dataclass(slots=True, eq=False)
class Row:
    """One row of a session: its token, whether the engine was told it, what it is after each layer (the
    embedding first), and the layers' memory after it."""

    token: int
    known: bool
    after_layers: list[list[int]]
    memory: list[list[int]]


@dataclass(slots=True, eq=False)
class ModelSession:
    rows: list[Row] = field(default_factory=list)
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """One entry of a step. `tokens` are what its rows stand for; `known` says whether a stage that is not the
    first is told them."""

    session: int
    position: int
    tokens: tuple[int, ...]
    output: str
    known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What an entry gave: rows of values, or a token."""

    values: bytes
    token: int | None
    length: int


class RulesModel:
    """Every call of the seam that concerns sessions, by the rules alone."""

    def __init__(self, limits: Limits, reference: FakeReference) -> None:
        self.limits = limits
        self.reference = reference
        self.sessions: dict[int, ModelSession] = {}
        self.n_steps = 0
        self.cancel_is_due = False

    @property
    def kv_cells_used(self) -> int:
        return len({id(row) for session in self.sessions.values() for row in session.rows})

    # ---- sessions

    def open(self, handle: int, sampling: Sampling) -> None:
        self._check_free_session()
        self.sessions[handle] = ModelSession(sampling=sampling)

    def fork(self, handle: int, source: int, position: int, sampling: Sampling) -> int:
        """Returns the KV cells taken."""
        rows = self._find(source).rows
        self._check_cut(rows, position)
        self._check_free_session()
        taken = rows[:position]
        if not self.limits.kv_unified:
            taken = [replace(row) for row in taken]
        before = self.kv_cells_used
        self.sessions[handle] = ModelSession(rows=taken, sampling=sampling)
        return self.kv_cells_used - before

    def trim(self, handle: int, position: int) -> int:
        """Returns the KV cells freed."""
        session = self._find(handle)
        self._check_cut(session.rows, position)
        before = self.kv_cells_used
        del session.rows[position:]
        return before - self.kv_cells_used

    def close(self, handle: int) -> int:
        """Returns the KV cells freed."""
        self._find(handle)
        before = self.kv_cells_used
        del self.sessions[handle]
        return before - self.kv_cells_used

    def _find(self, handle: int) -> ModelSession:
        if handle not in self.sessions:
            raise Refusal("no_session")
        return self.sessions[handle]

    def _check_free_session(self) -> None:
        most = self.limits.max_sessions
        if len(self.sessions) == most:
            raise Refusal("capacity", needed=most + 1, available=most)

    def _check_cut(self, rows: Sequence[Row], position: int) -> None:
        if position > len(rows):
            raise Refusal("position", expected=len(rows), actual=position)
        if not self.limits.can_trim and position not in (0, len(rows)):
            raise Refusal("unsupported", position=position, length=len(rows))

    # ---- steps

    def step(self, feeds: Sequence[Feed]) -> list[Done | Refusal]:
        """What each entry gives. An entry that is refused, or fails, leaves its session as it was."""
        outcomes = self._admitted(feeds)
        calls = list(self._calls(feeds, [i for i, refusal in enumerate(outcomes) if refusal is None]))
        self.n_steps += bool(calls)
        failure: Refusal | None = None
        if calls and self.cancel_is_due:
            failure, self.cancel_is_due = Refusal("cancelled"), False
        for number, call in enumerate(calls, start=1):
            if failure is None and ("fail-call", number, self.n_steps) in self.limits.faults:
                failure = Refusal("backend")
            for index in call:
                outcomes[index] = failure or self._computed(feeds[index])
        return [outcome for outcome in outcomes if outcome is not None]

    def _admitted(self, feeds: Sequence[Feed]) -> list[Done | Refusal | None]:
        """Why each entry is refused before anything is computed; None where it is not."""
        outcomes: list[Done | Refusal | None] = []
        rows_left, cells_left = self.limits.max_batch, self.limits.kv_cells - self.kv_cells_used
        for index, feed in enumerate(feeds):
            try:
                self._check(feed, [other.session for other in feeds[:index]], rows_left, cells_left)
            except Refusal as refusal:
                outcomes.append(refusal)
            else:
                outcomes.append(None)
                rows_left, cells_left = rows_left - len(feed.tokens), cells_left - len(feed.tokens)
        return outcomes

    def _check(self, feed: Feed, earlier: Sequence[int], rows_left: int, cells_left: int) -> None:
        length, n_rows = len(self._find(feed.session).rows), len(feed.tokens)
        if feed.session in earlier or n_rows == 0:
            raise Refusal("argument")
        if feed.position != length:
            raise Refusal("position", expected=length, actual=feed.position)
        if feed.output not in self.own_outputs:
            raise Refusal("not_owned")
        session_left = self.limits.n_ctx - length
        for available in (rows_left, self.limits.prefill_chunk, cells_left, session_left):
            if n_rows > available:
                raise Refusal("capacity", needed=n_rows, available=available)

    @property
    def is_last(self) -> bool:
        return self.limits.layers[1] == self.reference.n_layer

    @property
    def own_outputs(self) -> tuple[str, ...]:
        """What this stage can be asked for."""
        return ("none", "token", "logits", "logits_all", "embedding") if self.is_last else ("none", "hidden")

    def _calls(self, feeds: Sequence[Feed], admitted: Sequence[int]) -> Iterator[list[int]]:
        """Entries of one row together, then each longer one alone, and each that embeddings are asked of."""
        together = {i for i in admitted if len(feeds[i].tokens) == 1 and feeds[i].output != "embedding"}
        single = sorted(together, key=lambda i: feeds[i].session)
        for first in range(0, len(single), self.limits.n_ubatch):
            yield single[first : first + self.limits.n_ubatch]
        for index in admitted:
            if index not in together:
                yield [index]

    def continued(self, feed: Feed) -> list[Row]:
        """The rows of the feed, as they follow those of its session (or nothing, where there is none)."""
        before = self.sessions[feed.session].rows if feed.session in self.sessions else []
        memory = before[-1].memory if before else self.reference.open().memory
        known, rows = feed.known or self.limits.layers[0] == 0, []
        for token in feed.tokens:
            session = ReferenceSession([list(layer) for layer in memory])
            rows.append(Row(token, known, self.reference.rows(session, token), session.memory))
            memory = session.memory
        return rows

    def _computed(self, feed: Feed) -> Done | Refusal:
        session = self.sessions[feed.session]
        rows = [*session.rows, *self.continued(feed)]
        try:
            done = self._result(feed, session.sampling, rows)
        except Refusal as refusal:
            return refusal
        session.rows = rows
        return done

    def _result(self, feed: Feed, sampling: Sampling, rows: list[Row]) -> Done:
        n_made = self._rows_made(feed)
        if n_made and ("nan", 0, self.n_steps) in self.limits.faults:
            raise Refusal("non_finite", row=len(feed.tokens) - 1)
        token = self._drawn(sampling, rows) if feed.output == "token" else None
        n_given = 0 if feed.output in ("none", "token") else n_made
        given = rows[len(rows) - n_given :]
        values = b"".join(self._values(feed, row) for row in given)
        return Done(values=values, token=token, length=len(rows))

    def _rows_made(self, feed: Feed) -> int:
        if not self.is_last or feed.output in ("logits_all", "embedding"):
            return len(feed.tokens)
        return 0 if feed.output == "none" else 1

    def _values(self, feed: Feed, row: Row) -> bytes:
        if feed.output == "embedding":
            return as_floats(row.after_layers[-1])
        if self.is_last:
            return as_floats(self.reference.logits(row.after_layers[-1]))
        return as_rows(row.after_layers[self.limits.layers[1]], self.reference.boundary)

    def _drawn(self, sampling: Sampling, rows: Sequence[Row]) -> int:
        penalties = (sampling.repeat_penalty, sampling.presence_penalty, sampling.frequency_penalty)
        last_n = len(rows) if sampling.repeat_last_n < 0 else sampling.repeat_last_n
        seen = rows[max(0, len(rows) - last_n) :] if penalties != (1.0, 0.0, 0.0) else []
        if not all(row.known for row in seen):
            raise Refusal("argument")
        logits = self.reference.logits(rows[-1].after_layers[-1])
        return draw(sampling, logits, [row.token for row in rows])
