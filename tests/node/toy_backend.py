"""A stage that has nothing to do with GGUF: it adds up numbers, in plain Python.

The boundary row of a token is one float32: the token, plus every row that came before it in the session, plus
the numbers of the stage's layers, all modulo 4096. The last stage likes best the token that this ends in.
"""
# ruff: noqa: ARG002 - an adder has no use for most of what it is told

from __future__ import annotations

import struct
from collections.abc import Sequence

import anyio

from gguf_worker._schema import Buffer
from gguf_worker.errors import RequestError, StageLost
from gguf_worker.protocol.messages import Output, Result, Sampling
from gguf_worker.work import Work
from gguf_worker_v1 import common_pb2

VOCABULARY = 16
MODULUS = 4096
MAX_BATCH = 32
CHUNK = 8


class ToyBackend:
    """Layers [start, end) of a model of `n_layer`."""

    def __init__(self, start: int, end: int, n_layer: int = 3, *, max_sessions: int = 4) -> None:
        self.layers = start, end
        self.n_layer = n_layer
        self.max_sessions = max_sessions
        self.sessions: set[ToySession] = set()
        self.state = "ready"
        self.gate: anyio.Event | None = None
        """Where it is set, forwards wait for it before they compute."""
        self.waiting = anyio.Event()
        """Set when a forward waits for the gate."""
        self.loss: StageLost | None = None
        """Where it is set, the stage is gone."""
        self.emptied = anyio.Event()
        """Set when its last session has ended."""
        self._changed = anyio.Event()

    # ---- what it is ----

    def describe(self) -> common_pb2.Stage:
        start, end = self.layers
        stage = common_pb2.Stage(
            identity=common_pb2.Identity(
                artifact="ad" * 32, start=start, end=end, recipe={"modulus": str(MODULUS), "boundary": "f32"}
            ),
            build=common_pb2.Build(engine="toy", library_commit="none", build_class="toy"),
            model=common_pb2.Model(
                architecture="adder",
                name="adder",
                n_layer=self.n_layer,
                n_embd=1,
                n_vocab=VOCABULARY,
                n_ctx_train=4096,
            ),
            ownership=common_pb2.Ownership(
                start=start,
                end=end,
                owned_layers=end - start,
                token_embedding=start == 0,
                output_head=self.is_last,
                vocabulary=self.has_vocabulary,
            ),
            capacity=common_pb2.Capacity(
                max_sessions=self.max_sessions,
                kv_cells=4096,
                session_cells=1024,
                max_batch=MAX_BATCH,
                can_trim=True,
                n_ctx=1024,
                prefill_chunk=CHUNK,
                row_bytes=4,
            ),
            load=self._load(),
            state=self.state,
        )
        if self.has_vocabulary:
            stage.vocabulary.CopyFrom(
                common_pb2.Vocabulary(n_tokens=VOCABULARY, bos=-1, eos=0, eot=-1, newline=-1, padding=-1)
            )
        return stage

    @property
    def is_last(self) -> bool:
        return self.layers[1] == self.n_layer

    @property
    def has_vocabulary(self) -> bool:
        return self.layers[0] == 0 or self.is_last

    async def capacity(self) -> common_pb2.Load:
        return self._load()

    async def health(self) -> bool:
        return self.state == "ready"

    async def wait_for_change(self, seen: common_pb2.Stage) -> None:
        while self.state == seen.state:
            await self._changed.wait()

    def change(self, state: str) -> None:
        """Another state from here on."""
        self.state = state
        self._changed.set()
        self._changed = anyio.Event()

    def _load(self) -> common_pb2.Load:
        return common_pb2.Load(
            sessions=len(self.sessions), kv_cells_used=sum(session.kv_cells for session in self.sessions)
        )

    # ---- what it does ----

    async def open(self, identity: common_pb2.Identity, sampling: Sampling, work: Work) -> ToySession:
        if self.state != "ready":
            raise RequestError("not now", code="not_ready", retryable=True)
        return self.add(ToySession(self, []))

    def add(self, session: ToySession) -> ToySession:
        if len(self.sessions) >= self.max_sessions:
            raise RequestError("no room", code="capacity", retryable=True)
        self.sessions.add(session)
        return session

    def remove(self, session: ToySession) -> None:
        self.sessions.discard(session)
        if not self.sessions:
            self.emptied.set()

    async def tokenize(self, text: bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        return [byte % VOCABULARY for byte in text]

    async def detokenize(
        self, tokens: Sequence[int], *, remove_special: bool, unparse_special: bool
    ) -> bytes:
        return bytes(97 + token for token in tokens)

    async def chat_template(self) -> str:
        return "{{ messages }}"

    async def drain(self, timeout_s: float) -> bool:
        self.change("draining")
        return not self.sessions


class ToySession:
    """The rows that came in."""

    def __init__(self, backend: ToyBackend, rows: list[int]) -> None:
        self._backend = backend
        self.rows = rows

    @property
    def position(self) -> int:
        return len(self.rows)

    @property
    def kv_cells(self) -> int:
        return len(self.rows)

    async def forward(
        self, *, position: int, tokens: Sequence[int] | None, hidden: Buffer | None, output: Output
    ) -> Result:
        if position != self.position:
            raise RequestError(f"row {position}, not {self.position}", code="position")
        await self._wait()
        came_in = list(tokens or ()) if hidden is None else _numbers(hidden)
        if not came_in:
            raise RequestError("no rows", code="argument")
        if output not in (Output.NONE, Output.HIDDEN) and not self._backend.is_last:
            raise RequestError("no head here", code="not_owned")
        went_out = [self._compute(number) for number in came_in]
        return self._result(output, went_out)

    async def trim(self, position: int) -> int:
        self._check_living()
        if position > self.position:
            raise RequestError(f"only {self.position} rows", code="position")
        freed = self.position - position
        del self.rows[position:]
        return freed

    async def fork(self, position: int, sampling: Sampling, work: Work) -> ToySession:
        self._check_living()
        if position > self.position:
            raise RequestError(f"only {self.position} rows", code="position")
        return self._backend.add(ToySession(self._backend, self.rows[:position]))

    async def close(self) -> int:
        freed = self.position if self in self._backend.sessions else 0
        self._backend.remove(self)
        return freed

    async def _wait(self) -> None:
        self._check_living()
        if self._backend.gate is not None:
            self._backend.waiting.set()
            await self._backend.gate.wait()
            self._check_living()

    def _check_living(self) -> None:
        if self._backend.loss is not None:
            self._backend.remove(self)
            raise self._backend.loss

    def _compute(self, number: int) -> int:
        before = sum(self.rows)
        self.rows.append(number)
        return (number + before + sum(range(*self._backend.layers))) % MODULUS

    def _result(self, output: Output, numbers: list[int]) -> Result:
        rows: bytes | None = None
        columns = 1
        if output is Output.HIDDEN:
            rows = struct.pack(f"<{len(numbers)}f", *numbers)
        elif output in (Output.LOGITS, Output.LOGITS_ALL):
            columns = VOCABULARY
            wanted = numbers if output is Output.LOGITS_ALL else numbers[-1:]
            rows = b"".join(_logits(number) for number in wanted)
        values = 0 if rows is None else len(rows) // 4
        return Result(
            session=1,
            length=self.position,
            kv_cells=len(numbers),
            output=output,
            queue_us=1,
            compute_us=2,
            batch_rows=len(numbers),
            rows=values // columns,
            columns=columns if values else 0,
            hidden=rows if output is Output.HIDDEN else None,
            logits=rows if output is not Output.HIDDEN else None,
            token=numbers[-1] % VOCABULARY if output is Output.TOKEN else -1,
        )


def _numbers(hidden: Buffer) -> list[int]:
    raw = bytes(hidden)
    return [int(number) for number in struct.unpack(f"<{len(raw) // 4}f", raw)]


def _logits(number: int) -> bytes:
    liked = number % VOCABULARY
    return struct.pack(f"<{VOCABULARY}f", *(-float(abs(token - liked)) for token in range(VOCABULARY)))
