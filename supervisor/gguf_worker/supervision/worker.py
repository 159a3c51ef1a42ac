"""A ready worker: what it attested, and a typed call for each request of the protocol."""

from __future__ import annotations

import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from gguf_worker._schema import Buffer, SchemaError
from gguf_worker.errors import LocalProtocolError
from gguf_worker.identity import DTYPE_BYTES, Identity
from gguf_worker.process.exit import ExitReport
from gguf_worker.protocol.messages import (
    Answer,
    Cancel,
    Cancelled,
    Capacity,
    ChatTemplate,
    Close,
    Closed,
    Detokenize,
    Detokenized,
    Fork,
    Forward,
    GetChatTemplate,
    GetHealth,
    GetTokenInfo,
    Health,
    Hello,
    Loaded,
    Memory,
    Model,
    Open,
    Opened,
    Output,
    Ownership,
    Ping,
    Pong,
    Request,
    Result,
    Sampling,
    TokenInfo,
    TokenInfos,
    Tokenize,
    Tokenized,
    Trim,
    Trimmed,
    Vocabulary,
)
from gguf_worker.protocol.pieces import most_rows
from gguf_worker.supervision.channel import Pending, ProgressCallback
from gguf_worker.supervision.life import Life
from gguf_worker.supervision.lifecycle import Lifecycle, WorkerState
from gguf_worker.supervision.session import Session, ids_of
from gguf_worker.supervision.settings import WorkerSettings
from gguf_worker.supervision.spec import ShardSpec
from gguf_worker.work import Work

AnswerT = TypeVar("AnswerT", bound=Answer)


class Worker:
    """A loaded shard in a process of its own.

    Any number of tasks may call it at once. Every call raises RequestError where the worker refuses,
    RequestTimeout past its deadline, WorkerDied when the worker is gone, and WorkerStopped once it was
    stopped on purpose.
    """

    def __init__(
        self, life: Life, loaded: Loaded, lifecycle: Lifecycle, settings: WorkerSettings, load_s: float
    ) -> None:
        self._life = life
        self._loaded = loaded
        self._lifecycle = lifecycle
        self._settings = settings
        self.load_s = load_s
        """Seconds from the load request to `loaded`."""

    def __repr__(self) -> str:
        state = self.state.value if self.exit is None else "ended"
        return f"<Worker {state} pid={self.pid} identity={self.identity}>"

    # ---- what it is ----

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._life.pid is not None, "a Worker exists only after its spawn"
        return self._life.pid

    @property
    def state(self) -> WorkerState:
        """Where its supervisor is; after a restart that is about the process that took this one's place."""
        return self._lifecycle.state

    @property
    def hello(self) -> Hello:
        """Versions, engines and build, as the worker introduced itself."""
        return self._life.hello

    @property
    def identity(self) -> Identity:
        """What the worker attested to hold; equal in every field to what was asked."""
        return self._loaded.identity

    @property
    def label(self) -> str:
        """Names it as a stage."""
        start, end = self.layers
        return f"layers {start}:{end}"

    @property
    def layers(self) -> tuple[int, int]:
        """[start, end)."""
        return self.identity.start, self.identity.end

    @property
    def model(self) -> Model:
        """The whole model."""
        return self._loaded.model

    @property
    def ownership(self) -> Ownership:
        """What is really loaded."""
        return self._loaded.ownership

    @property
    def memory(self) -> Memory:
        """Bytes of weights, KV and compute buffers."""
        return self._loaded.memory

    @property
    def capacity(self) -> Capacity:
        """Sessions, KV cells, rows per step."""
        return self._loaded.capacity

    @property
    def vocabulary(self) -> Vocabulary | None:
        """Special tokens; None where this shard has no vocabulary."""
        return self._loaded.vocabulary

    @property
    def exit(self) -> ExitReport | None:
        """How its process ended; None while it lives."""
        return self._life.exit

    @property
    def stderr_tail(self) -> tuple[str, ...]:
        """The last lines that it wrote on stderr."""
        return self._life.stderr.tail()

    @property
    def in_flight(self) -> dict[int, str]:
        """The ids and types of requests that wait for their answer."""
        return self._life.channel.in_flight

    @property
    def row_bytes(self) -> int:
        """Bytes of one hidden row."""
        return DTYPE_BYTES[self.identity.recipe.boundary] * self.model.n_embd

    @property
    def n_ctx(self) -> int:
        """Most rows of one session."""
        return self.identity.recipe.n_ctx

    @property
    def prefill_chunk(self) -> int:
        """A long prefill is cut at multiples of it."""
        return self.identity.recipe.prefill_chunk

    @property
    def can_trim(self) -> bool:
        """Whether sessions can be trimmed and forked at any position."""
        return self.capacity.can_trim

    @property
    def can_run_ahead(self) -> bool:
        """Whether sessions may go on to the next row by themselves: the whole model is here, and a row that
        nobody wanted after all can be forgotten."""
        return self.can_trim and self.layers == (0, self.model.n_layer)

    def requests_of(self, session: int) -> tuple[int, ...]:
        """The ids of requests that name a session and wait for their answer."""
        return self._life.channel.requests_of(session)

    def max_rows(self, output: Output) -> int:
        """Rows that one forward may carry so that they fit in one step, and they and its answer in one
        frame: whole prefill chunks where at least one fits, so that a sequence is cut in the same places
        however it is sent."""
        return most_rows(
            output,
            model=self.model,
            row_bytes=self.row_bytes,
            prefill_chunk=self.prefill_chunk,
            max_batch=self.capacity.max_batch,
            max_frame_bytes=self.hello.max_frame_bytes,
        )

    async def wait_for_end(self) -> ExitReport:
        """Returns when the process has ended, with how."""
        await self._life.ended.wait()
        assert self._life.exit is not None
        return self._life.exit

    # ---- sessions ----

    async def open_session(
        self,
        *,
        identity: Identity | None = None,
        sampling: Sampling | None = None,
        fork: Fork | None = None,
        work: Work | None = None,
    ) -> Session:
        """Opens a session of `identity` (the worker's own by default; any other is refused), empty or with
        the first rows of another one. It draws greedily unless `sampling` says otherwise. The ids of `work`
        are in the log lines of all that is asked for it."""
        sampling = sampling or Sampling()
        request = Open(identity=(identity or self.identity).asked(), sampling=sampling, fork=fork)
        with ids_of(work):
            opened = await self._ask(request, Opened)
        return Session(
            worker=self,
            session_id=opened.session,
            position=opened.length,
            sampling=sampling,
            work=work,
        )

    async def forward(
        self,
        *,
        session: int,
        position: int,
        output: Output | str,
        tokens: Sequence[int] | None = None,
        hidden: Buffer | None = None,
        timeout_s: float | None = None,
    ) -> Result:
        """Computes rows of one session: `tokens` on the first stage, `hidden` rows (in the recipe's boundary
        dtype) on every other, there with or without the tokens that they stand for.

        `hidden` is written without a copy and must not change until this returns.
        """
        pending = self.send_forward(
            session=session, position=position, output=output, tokens=tokens, hidden=hidden
        )
        return await self.result_of(pending, timeout_s)

    def send_forward(
        self,
        *,
        session: int,
        position: int,
        output: Output | str,
        tokens: Sequence[int] | None = None,
        hidden: Buffer | None = None,
    ) -> Pending:
        """As `forward`, but does not wait: its sender calls `result_of`, or `abandon`."""
        try:
            request = Forward(
                session=session,
                position=position,
                output=output if type(output) is Output else Output(output),
                tokens=None if tokens is None else tuple(tokens),
                hidden=hidden,
            )
        except (SchemaError, ValueError) as error:
            raise LocalProtocolError(f"forward: {error}") from error
        return self._life.channel.submit(request)

    def send_after_draw(self, *, session: int, position: int, output: Output) -> Pending:
        """As `send_forward`; the row is the token that the session draws with the forward before it, which
        may not be answered yet. Refused with code `no_draw` where that draws none, or the last one."""
        request = Forward(session=session, position=position, output=output, after_draw=True)
        return self._life.channel.submit(request)

    def result_of(self, pending: Pending, timeout_s: float | None = None) -> Coroutine[Any, Any, Result]:
        """Waits for a forward that was sent. Its time begins now: until somebody wants it, it may wait behind
        others."""
        if timeout_s is None:
            timeout_s = self._settings.request_timeout_s
        return self._life.channel.outcome_of(pending, Result, timeout_s)

    def abandon(self, pending: Pending, *, cancel: bool = True) -> None:
        """Nobody will wait for a forward that was sent. It is taken back or cancelled, or without `cancel`
        may run to its end. Does not wait."""
        self._life.channel.abandon(pending, cancel=cancel)

    async def trim(self, *, session: int, position: int) -> Trimmed:
        """Forgets every row of the session from `position` on."""
        return await self._ask(Trim(session=session, position=position), Trimmed)

    async def close_session(self, *, session: int) -> Closed:
        """Ends a session."""
        return await self._ask(Close(session=session), Closed)

    # ---- text ----

    async def tokenize(
        self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """The tokens of a text."""
        raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        request = Tokenize(text=raw, add_special=add_special, parse_special=parse_special)
        return list((await self._ask(request, Tokenized)).tokens)

    async def detokenize(
        self, tokens: Sequence[int], *, remove_special: bool = False, unparse_special: bool = False
    ) -> bytes:
        """The text of tokens; it may end inside a UTF-8 sequence."""
        request = Detokenize(
            tokens=tuple(tokens), remove_special=remove_special, unparse_special=unparse_special
        )
        return (await self._ask(request, Detokenized)).text

    async def token_info(self, tokens: Sequence[int]) -> tuple[TokenInfo, ...]:
        """What tokens are, in the order asked."""
        return (await self._ask(GetTokenInfo(tokens=tuple(tokens)), TokenInfos)).tokens

    async def chat_template(self, name: str | None = None) -> str:
        """The artifact's own chat template of that name, None the one without a name; empty where there is
        none. Refused by a worker without the vocabulary, and (`malformed`) where it is not UTF-8."""
        return (await self._ask(GetChatTemplate(name=name), ChatTemplate)).template

    # ---- control ----

    async def ping(self) -> float:
        """Seconds to the control thread and back."""
        started = time.perf_counter()
        await self._ask(Ping(), Pong)
        return time.perf_counter() - started

    async def health(self) -> Health:
        """How the worker is; answered also while it computes."""
        return await self._ask(GetHealth(), Health)

    async def cancel(self, request_id: int) -> Cancelled:
        """Cancels another request (see `in_flight`); that one fails with code `cancelled` unless it is too
        late."""
        return await self._ask(Cancel(request=request_id), Cancelled)

    async def load(self, spec: ShardSpec, *, on_progress: ProgressCallback | None = None) -> Loaded:
        """Asks for another load. A worker holds one identity for its life, so it refuses: code `identity`."""
        return await self._life.channel.request(spec.load_request(), Loaded, on_progress=on_progress)

    async def _ask(self, request: Request, answer: type[AnswerT], timeout_s: float | None = None) -> AnswerT:
        if timeout_s is None:
            control = request.answered_by_control_thread
            timeout_s = self._settings.control_timeout_s if control else self._settings.request_timeout_s
        return await self._life.channel.request(request, answer, timeout_s=timeout_s)
