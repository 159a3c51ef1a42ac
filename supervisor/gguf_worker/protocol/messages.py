"""Every message of docs/protocol.md as a frozen dataclass. No I/O.

A message knows its own keys; `type` and `id` belong to the envelope (see `encode_message`,
`decode_message`), so that one request object can be sent more than once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar, NamedTuple, TypeAlias

from gguf_worker._schema import (
    FLOAT32_MAX,
    Buffer,
    Float32,
    Line,
    Name,
    Number,
    PathText,
    Range,
    Rows,
    SchemaError,
    Span,
    Token,
    Uint,
    Uint32,
    WireMap,
    as_text,
)
from gguf_worker.errors import LocalProtocolError, RemoteProtocolError
from gguf_worker.identity.identity import Identity
from gguf_worker.identity.recipe import DTYPE_BYTES, Recipe
from gguf_worker.protocol.limits import MAX_GRAMMAR_BYTES, MAX_LOGIT_BIAS, MAX_TOP_LOGPROBS


class Output(StrEnum):
    """What a forward gives back."""

    NONE = "none"
    HIDDEN = "hidden"
    LOGITS = "logits"
    LOGITS_ALL = "logits_all"
    TOKEN = "token"
    EMBEDDING = "embedding"


class Message(WireMap):
    """Base of all messages."""

    __slots__ = ()
    type: ClassVar[str]
    large_key: ClassVar[str | None] = None
    """The key whose value is written without a copy."""


class Request(Message):
    """Base of what the host asks; each is resolved exactly once."""

    __slots__ = ()
    answered_by_control_thread: ClassVar[bool] = False
    has_progress: ClassVar[bool] = False


class Answer(Message):
    """Base of what resolves a request."""

    __slots__ = ()


# ---- maps inside messages -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Device(WireMap):
    """One device that the engine can compute on; memory in bytes."""

    name: str
    description: str
    kind: str
    memory_total: Uint
    memory_free: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class Build(WireMap):
    """What the engine is made of: `pinned_*` was compiled in, `library_*` is what is loaded."""

    engine: str
    engine_version: str
    pinned_package: str
    pinned_commit: str
    library_commit: str
    library_version: str
    devices: tuple[Device, ...]
    features: str = ""
    """What else decides the bits of its results: backends and the instructions that they use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model(WireMap):
    """The whole model that a shard is cut from."""

    architecture: str
    name: str
    n_layer: Uint
    n_embd: Uint
    n_vocab: Uint
    n_ctx_train: Uint
    n_embd_out: Uint = 0
    """Values in a row of embeddings; 0 where the model gives none."""
    pooling: str = "none"
    """How the file says that one vector is made of such rows: none, mean, cls, last, rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership(WireMap):
    """What is really loaded, counted from the loaded tensors."""

    layers: tuple[Uint, Uint]
    owned_layers: Uint
    tensors: Uint
    bytes: Uint
    token_embedding: bool
    output_head: bool
    vocabulary: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(WireMap):
    """Bytes that a shard occupies, or would."""

    weights_bytes: Uint
    kv_bytes: Uint
    compute_bytes: Uint

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.compute_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity(WireMap):
    """How much a loaded shard can do at once."""

    max_sessions: Uint
    kv_cells: Uint
    """Of all sessions together."""
    max_batch: Uint
    """Rows in one step."""
    session_cells: Uint
    """Most KV cells that one session can take."""
    can_trim: bool
    """Whether sessions can be trimmed and forked at any position; otherwise, where the model has recurrent
    state, only at their end or at 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary(WireMap):
    """Special tokens; -1 where there is none."""

    n_tokens: Uint
    bos: Token
    eos: Token
    eot: Token
    newline: Token
    padding: Token
    add_bos: bool
    add_eos: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling(WireMap):
    """How the last stage draws tokens: llama.cpp's samplers in the order logit bias, grammar, penalties,
    top-k, typical, top-p, min-p, temperature, draw.

    A draw depends on the logits, the seed, the position and the tokens of the session's rows, so a session
    that is opened again and given the same rows draws the same tokens. Raises SchemaError where a value is
    outside its range. Numbers are rounded to float32.
    """

    is_closed: ClassVar[bool] = True

    temperature: Annotated[float, Span(0, FLOAT32_MAX)] = 0.0
    """0 takes the most likely token, the lowest id among equals."""
    seed: Uint32 = 0
    top_k: Annotated[int, Range(0, 2**31 - 1)] = 0
    """Keeps the k most likely; 0 is off."""
    top_p: Annotated[float, Span(0, 1, above=True)] = 1.0
    """Keeps the least set of tokens with this probability; 1 is off."""
    min_p: Annotated[float, Span(0, 1)] = 0.0
    """Drops what is less likely than this part of the best; 0 is off."""
    typical_p: Annotated[float, Span(0, 1, above=True)] = 1.0
    """Locally typical sampling; 1 is off."""
    repeat_penalty: Annotated[float, Span(0, FLOAT32_MAX, above=True)] = 1.0
    """Divides or multiplies the logits of seen tokens; 1 is off."""
    presence_penalty: Float32 = 0.0
    """Subtracted once for a seen token."""
    frequency_penalty: Float32 = 0.0
    """Subtracted for each time a token was seen."""
    repeat_last_n: Annotated[int, Range(-1, 2**31 - 1)] = 64
    """Rows back that count as seen; -1 is all."""
    logit_bias: tuple[tuple[Token, Annotated[float, Span(-math.inf, FLOAT32_MAX)]], ...] = ()
    """Pairs of a token and what is added to its logit; minus infinity bans it. At most 4096."""
    grammar: Annotated[str, Line(0, MAX_GRAMMAR_BYTES)] = ""
    """GBNF with a rule `root`; empty is none."""
    grammar_start: Annotated[int, Range(0, 2**32 - 2)] | None = None
    """Position of the first row that the grammar governs; None is the session's length at its first draw. A
    session that is opened again gives the position at which the first one began to draw."""
    top_logprobs: Annotated[int, Range(0, MAX_TOP_LOGPROBS)] = 0
    """Most likely tokens that a drawn one brings along."""

    def __post_init__(self) -> None:
        self.settle()
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            pairs = len(self.logit_bias)
            raise SchemaError(f"key 'logit_bias': {pairs} pairs are more than {MAX_LOGIT_BIAS}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(WireMap):
    """A token that could have been drawn, with the natural logarithm of its probability."""

    token: Token
    logprob: float
    text: bytes
    """What the token adds to a text; may end inside a UTF-8 sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork(WireMap):
    """The session whose first `position` rows a new one begins with."""

    session: Number
    position: Uint32


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactFile(WireMap):
    """One file of an artifact."""

    path: str
    bytes: Uint
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInfo(WireMap):
    """What one token is; `attributes` are the bits of llama.cpp's `llama_token_attr`."""

    attributes: Uint
    control: bool
    end_of_generation: bool


# ---- from the worker, not answers ---------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(Message):
    """The worker's first message."""

    type: ClassVar[str] = "hello"
    protocol_min: Uint
    protocol_max: Uint
    max_frame_bytes: Uint
    pid: Uint
    worker_version: str
    engines: tuple[str, ...]
    build: Build


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Message):
    """Bytes done of a total in a phase: digest, slice, load or warm-up."""

    type: ClassVar[str] = "progress"
    phase: str
    done: Uint
    total: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class Error(Message):
    """Why a request was not answered; without an id, why the worker stops."""

    type: ClassVar[str] = "error"
    code: str
    message: str
    retryable: bool
    fields: dict[str, str]


# ---- answered by the control thread -------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping(Request):
    """Asks whether the control thread lives."""

    type: ClassVar[str] = "ping"
    answered_by_control_thread: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong(Answer):
    """It does."""

    type: ClassVar[str] = "pong"


@dataclass(frozen=True, slots=True, kw_only=True)
class GetHealth(Request):
    """Asks for `Health`."""

    type: ClassVar[str] = "health"
    answered_by_control_thread: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Health(Answer):
    """How the worker is; memory in bytes, times in microseconds."""

    type: ClassVar[str] = "health"
    state: str
    """idle, loading, ready, computing or draining."""
    phase: str
    phase_done: Uint
    phase_total: Uint
    progress: Uint
    """Rises with every graph node and load step; compare two readings."""
    identity: Identity | None
    ownership: Ownership | None
    memory: Memory | None
    capacity: Capacity | None
    sessions: Uint
    kv_cells_used: Uint
    queued: Uint
    requests: Uint
    errors: Uint
    rows: Uint
    tokens_sampled: Uint
    compute_us: Uint
    rss_bytes: Uint
    rss_before_load_bytes: Uint
    uptime_us: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel(Request):
    """Asks to cancel another request by its id."""

    type: ClassVar[str] = "cancel"
    answered_by_control_thread: ClassVar[bool] = True
    request: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled(Answer):
    """Where the cancelled request was: `queued`, `running` or `unknown`."""

    type: ClassVar[str] = "cancelled"
    request: Uint
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown(Request):
    """Asks the worker to resolve everything, close the engine and exit."""

    type: ClassVar[str] = "shutdown"
    answered_by_control_thread: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Bye(Answer):
    """What was released; the worker's last message."""

    type: ClassVar[str] = "bye"
    sessions: Uint
    kv_cells: Uint
    weights_bytes: Uint
    kv_bytes: Uint
    compute_bytes: Uint


# ---- answered by the execution thread -----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspect(Request):
    """Asks what an artifact is, without loading it."""

    type: ClassVar[str] = "inspect"
    has_progress: ClassVar[bool] = True
    model: PathText
    engine: Name | None = None
    cache_dir: PathText | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection(Answer):
    """What an artifact is."""

    type: ClassVar[str] = "inspected"
    artifact: str
    files: tuple[ArtifactFile, ...]
    architecture: str
    model_name: str
    quantization: str
    n_layer: Uint
    n_embd: Uint
    n_vocab: Uint
    n_ctx_train: Uint
    n_expert: Uint
    n_tensors: Uint
    tensor_bytes: Uint
    embedding_bytes: Uint
    head_bytes: Uint
    tied_head: bool
    layer_bytes: tuple[Uint, ...]
    """Bytes of each layer; 0 where a slice lacks it."""
    slice: tuple[Uint, Uint] | None
    supported: bool
    """Whether it may be cut."""
    cut_period: Uint
    """Cuts must be multiples of it, and leave at least as many layers behind the last; 0 where no cut is
    allowed."""
    reason: str
    """Why not, where `supported` is false; it says "serve it whole" where that is possible."""

    @property
    def allowed_cuts(self) -> tuple[int, ...]:
        """The layers before which the model may be cut, in order. The few cuts that a model forbids besides
        are refused by the load, with the reason."""
        if not self.supported or self.cut_period == 0:
            return ()
        start, end = self.slice or (0, self.n_layer)
        last = min(end - 1, self.n_layer - self.cut_period)
        return tuple(layer for layer in range(start + 1, last + 1) if layer % self.cut_period == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice(Request):
    """Asks to write layers `[start, end)` as one self-contained GGUF."""

    type: ClassVar[str] = "slice"
    has_progress: ClassVar[bool] = True
    model: PathText
    layers: tuple[Uint32, Uint32]
    output: PathText
    overwrite: bool = False
    cache_dir: PathText | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceResult(Answer):
    """The file that was written."""

    type: ClassVar[str] = "sliced"
    output: str
    bytes: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRequest(Request):
    """What names a shard and how it is held; `layers` end 0 means up to the last layer."""

    has_progress: ClassVar[bool] = True
    model: PathText
    layers: tuple[Uint32, Uint32]
    recipe: Recipe
    artifact: str | None = None
    max_sessions: Annotated[int, Range(1, 2**32 - 1)] = 4
    mmap: bool = True
    mlock: bool = False
    cache_dir: PathText | None = None
    memory_available: Uint = 0
    """Bytes that may be taken; a load that needs more is refused before it takes any. 0 is no check."""
    numa: Name | None = None
    """How llama.cpp places its threads: distribute, isolate or numactl; None is not at all."""
    n_stages: Annotated[int, Range(0, 2**31 - 1)] = 0
    """Of the route, so that a step leaves decode rows for the others; 0 is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(ShardRequest):
    """Asks to load a shard."""

    type: ClassVar[str] = "load"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(ShardRequest):
    """Asks what a load of the same keys would take."""

    type: ClassVar[str] = "estimate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated(Answer):
    """Bytes that the load would take."""

    type: ClassVar[str] = "estimated"
    memory: Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded(Answer):
    """What was loaded, attested by the engine."""

    type: ClassVar[str] = "loaded"
    identity: Identity
    model: Model
    ownership: Ownership
    memory: Memory
    capacity: Capacity
    vocabulary: Vocabulary | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Open(Request):
    """Asks for a session of exactly this identity, empty or with the first rows of another."""

    type: ClassVar[str] = "open"
    identity: Identity
    sampling: Sampling = field(default_factory=Sampling)
    fork: Fork | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened(Answer):
    """The session's id, never used twice in a worker's life; its length, and the KV cells taken."""

    type: ClassVar[str] = "opened"
    session: Number
    length: Uint
    kv_cells: Uint


NO_DRAW = "no_draw"
"""Code of a forward that was sent ahead of a token that never came, as at the end of most generations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward(Request):
    """Asks to compute rows of one session, from `position` on.

    The first stage takes `tokens`. Others take `hidden` (in the recipe's boundary dtype) and may be given the
    tokens that the rows stand for, one each, which penalties and grammars of the last stage look at. With
    `after_draw` a stage that takes tokens and draws them takes the one that the session drew last.
    """

    type: ClassVar[str] = "forward"
    large_key: ClassVar[str | None] = "hidden"
    session: Number
    position: Uint32
    output: Output
    tokens: tuple[Token, ...] | None = None
    hidden: Rows | None = None
    after_draw: bool | None = None

    def __post_init__(self) -> None:
        tokens, hidden = self.tokens, self.hidden
        has_rows = tokens is not None or hidden is not None
        if self.after_draw and has_rows:
            raise SchemaError("'after_draw' takes the place of 'tokens' and 'hidden'")
        if not has_rows and not self.after_draw:
            raise SchemaError("'tokens' or 'hidden' must be there")
        if (tokens is not None and not len(tokens)) or (hidden is not None and not len(hidden)):
            raise SchemaError("there must be at least one row")


_KEY_OF_ROWS = {
    Output.HIDDEN: "hidden",
    Output.LOGITS: "logits",
    Output.LOGITS_ALL: "logits",
    Output.EMBEDDING: "embedding",
}
"""Of a result, by its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Answer):
    """What a forward gave back; rows are little-endian and row-major, times are microseconds."""

    type: ClassVar[str] = "result"
    session: Number
    length: Uint
    """The session's length now."""
    kv_cells: Uint
    """KV cells that this request took."""
    output: Output
    queue_us: Uint
    compute_us: Uint
    batch_rows: Uint
    """Most rows that shared a step with it."""
    rows: Uint = 0
    columns: Uint = 0
    dtype: str = "f32"
    """Of one value: f32, f16 or bf16; logits and embeddings are always f32."""
    hidden: Rows | None = None
    logits: Rows | None = None
    embedding: Rows | None = None
    token: Token = -1
    logprob: float = 0.0
    end_of_generation: bool = False
    text: bytes = b""
    """What the token adds to a text; may end inside a UTF-8 sequence."""
    top: tuple[Candidate, ...] = ()
    """The most likely tokens, best first, where the session's sampling asks for them."""

    def __post_init__(self) -> None:
        value_bytes = DTYPE_BYTES.get(self.dtype)
        if value_bytes is None:
            raise SchemaError(f"dtype {self.dtype!r} is none of {', '.join(DTYPE_BYTES)}")
        values = self.values
        present = 0 if values is None else len(values)
        if present != value_bytes * self.rows * self.columns:
            raise SchemaError(f"{self.rows} x {self.columns} {self.dtype} values in {present} bytes")
        key = _KEY_OF_ROWS.get(self.output)
        if key is not None and getattr(self, key) is None:
            raise SchemaError(f"output {self.output.value!r} without its rows")

    @property
    def values(self) -> Rows | None:
        """The rows that came back, whatever they are."""
        if self.hidden is not None:
            return self.hidden
        return self.embedding if self.logits is None else self.logits


@dataclass(frozen=True, slots=True, kw_only=True)
class Trim(Request):
    """Asks to forget every row from `position` on."""

    type: ClassVar[str] = "trim"
    session: Number
    position: Uint32


@dataclass(frozen=True, slots=True, kw_only=True)
class Trimmed(Answer):
    """The session's length now and the KV cells given back."""

    type: ClassVar[str] = "trimmed"
    session: Number
    length: Uint
    kv_cells_freed: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class Close(Request):
    """Asks to end a session."""

    type: ClassVar[str] = "close"
    session: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed(Answer):
    """The KV cells given back."""

    type: ClassVar[str] = "closed"
    session: Number
    kv_cells_freed: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenize(Request):
    """Asks for the tokens of a text."""

    type: ClassVar[str] = "tokenize"
    text: bytes
    add_special: bool = True
    parse_special: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenized(Answer):
    """The tokens of a text."""

    type: ClassVar[str] = "tokenized"
    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Detokenize(Request):
    """Asks for the text of tokens."""

    type: ClassVar[str] = "detokenize"
    tokens: tuple[Token, ...]
    remove_special: bool = False
    unparse_special: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Detokenized(Answer):
    """Text as bytes: it may end inside a UTF-8 sequence."""

    type: ClassVar[str] = "detokenized"
    text: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GetTokenInfo(Request):
    """Asks what tokens are."""

    type: ClassVar[str] = "token_info"
    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInfos(Answer):
    """What tokens are, in the order asked."""

    type: ClassVar[str] = "token_infos"
    tokens: tuple[TokenInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GetChatTemplate(Request):
    """Asks for the artifact's own chat template; None is the one without a name."""

    type: ClassVar[str] = "chat_template"
    name: Name | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate(Answer):
    """The template as the file has it; empty where there is none of that name."""

    type: ClassVar[str] = "chat_template"
    template: str


# ---- which answers what, and the envelope -------------------------------------------------------

ANSWER_OF: dict[type[Request], type[Answer]] = {
    Ping: Pong,
    GetHealth: Health,
    Cancel: Cancelled,
    Shutdown: Bye,
    Inspect: Inspection,
    Slice: SliceResult,
    Load: Loaded,
    Estimate: Estimated,
    Open: Opened,
    Forward: Result,
    Trim: Trimmed,
    Close: Closed,
    Tokenize: Tokenized,
    Detokenize: Detokenized,
    GetTokenInfo: TokenInfos,
    GetChatTemplate: ChatTemplate,
}

WITHOUT_ID = (Hello, Error, Bye)
"""Messages that may speak of the whole connection in place of one request."""

ByType: TypeAlias = Mapping[str, type[Message]]


def _by_type(*messages: type[Message]) -> ByType:
    return {message.type: message for message in messages}


TO_WORKER: ByType = _by_type(*ANSWER_OF)
TO_HOST: ByType = _by_type(Hello, Progress, Error, *ANSWER_OF.values())


class Envelope(NamedTuple):
    """A message and the id it travels with; None where it speaks of the whole connection."""

    id: int | None
    message: Message


def decode_message(values: Mapping[str, object], known: ByType) -> Envelope:
    """The message that a body holds; raises RemoteProtocolError (code `bad_message`) where it is not
    valid."""
    name = values.get("type")
    cls = known.get(name if type(name) is str else _type_of(values))
    if cls is None:
        raise _bad_message(f"message of unknown type {values.get('type')!r}")
    request_id = values.get("id")
    if request_id is not None and (type(request_id) is not int or not 1 <= request_id < 2**64):
        raise _bad_message(f"{cls.type!r} has id {request_id!r}, not an integer of at least 1")
    if request_id is None and cls not in WITHOUT_ID:
        raise _bad_message(f"{cls.type!r} has no id")
    try:
        return Envelope(request_id, cls.from_map(values))
    except SchemaError as error:
        raise _bad_message(f"{cls.type!r}: {error}") from error


def encode_message(message: Message, request_id: int | None) -> tuple[dict[str, object], Buffer | None]:
    """The map of a message, and its large value apart."""
    values: dict[str, object] = {"type": message.type}
    if request_id is not None or isinstance(message, Error):
        values["id"] = request_id
    message.write_into(values)
    large = values.pop(message.large_key, None) if message.large_key else None
    if large is not None and not isinstance(large, (bytes, bytearray, memoryview)):
        raise LocalProtocolError(
            f"{message.large_key!r} must be bytes or a memoryview, not {type(large).__name__}"
        )
    return values, large


def _type_of(values: Mapping[str, object]) -> str:
    try:
        return as_text(values.get("type"))
    except SchemaError as error:
        raise _bad_message(f"message without a type: {error}") from error


def _bad_message(text: str) -> RemoteProtocolError:
    return RemoteProtocolError(text, code="bad_message")
