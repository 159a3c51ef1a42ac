"""A ready worker: what it attested, and a typed call for each request of the protocol."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeVar

from gguf_worker._schema import Buffer, SchemaError
from gguf_worker.errors import LocalProtocolError
from gguf_worker.identity import DTYPE_BYTES, Identity
from gguf_worker.process.exit import ExitReport
from gguf_worker.protocol.messages import (
    Answer,
    Cancel,
    Cancelled,
    Capacity,
    Close,
    Closed,
    Detokenize,
    Detokenized,
    Fork,
    Forward,
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
from gguf_worker.supervision.channel import ProgressCallback
from gguf_worker.supervision.life import Life
from gguf_worker.supervision.lifecycle import Lifecycle, WorkerState
from gguf_worker.supervision.session import Session
from gguf_worker.supervision.settings import WorkerSettings
from gguf_worker.supervision.spec import ShardSpec

AnswerT = TypeVar("AnswerT", bound=Answer)

FRAME_OVERHEAD_BYTES = 4096
"""More than all keys of a forward or a result but their rows occupy."""

TOKEN_BYTES = 5
"""Most that one token takes beside the hidden row that it stands for."""


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

    def max_rows(self, output: Output) -> int:
        """Rows that one forward may carry so that they fit in one step, and they and its answer in one
        frame: whole prefill chunks where at least one fits, so that a sequence is cut in the same places
        however it is sent."""
        answer_bytes = 4 * self.model.n_vocab if output is Output.LOGITS_ALL else self.row_bytes
        largest = max(self.row_bytes + TOKEN_BYTES, answer_bytes)
        fitting = (self.hello.max_frame_bytes - FRAME_OVERHEAD_BYTES) // largest
        most = max(1, min(self.capacity.max_batch, fitting))
        chunk = self.identity.recipe.prefill_chunk
        return most if most < chunk else most - most % chunk

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
    ) -> Session:
        """Opens a session of `identity` (the worker's own by default; any other is refused), empty or with
        the first rows of another one. It draws greedily unless `sampling` says otherwise."""
        sampling = sampling or Sampling()
        request = Open(identity=(identity or self.identity).asked(), sampling=sampling, fork=fork)
        opened = await self._ask(request, Opened)
        return Session(worker=self, session_id=opened.session, position=opened.length, sampling=sampling)

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
        try:
            request = Forward(
                session=session,
                position=position,
                output=Output(output),
                tokens=None if tokens is None else tuple(tokens),
                hidden=hidden,
            )
        except (SchemaError, ValueError) as error:
            raise LocalProtocolError(f"forward: {error}") from error
        return await self._ask(request, Result, timeout_s)

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
