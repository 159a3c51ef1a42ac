"""The values that cross the seam. All are frozen; sizes are bytes, rows and positions count tokens."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from ._errors import ShardEngineError, Status

ProgressCallback = Callable[[str, int, int], bool | None]
"""`on_progress(phase, done, total)`; returning False cancels, None and True go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a shard is executed: `shard_recipe`."""

    n_ctx: int = 4096
    n_batch: int = 512
    n_ubatch: int = 128
    prefill_chunk: int = 0
    """0 is n_ubatch; a description says how many rows that are."""
    n_threads: int = 0
    """0 lets the engine choose; a description says how many it took."""
    flash_attn: bool = True
    repack: bool = True
    kv_unified: bool = True
    """Whether all sessions share n_ctx KV cells, or each has as many of its own."""
    n_gpu_layers: int = 0
    main_gpu: int = 0
    split_mode: str = "layer"
    type_k: str = "f16"
    type_v: str = "f16"
    boundary: str = "f32"
    """dtype of hidden rows: f32, f16 or bf16."""
    rope_scaling: str = "model"
    rope_freq_base: float = 0.0
    rope_freq_scale: float = 0.0
    yarn_ext_factor: float = -1.0
    yarn_attn_factor: float = -1.0
    yarn_beta_fast: float = -1.0
    yarn_beta_slow: float = -1.0
    yarn_orig_ctx: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device that the engine can compute on."""

    name: str
    description: str
    kind: str
    memory_total: int
    memory_free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What the engine is made of."""

    engine: str
    engine_version: str
    pinned_package: str
    pinned_commit: str
    library_commit: str
    library_version: str
    features: str
    """What else decides the bits of its results: backends and the instructions that they use."""
    pin_matches: bool
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes that a shard takes, or would take: `shard_memory`."""

    weights_bytes: int
    kv_bytes: int
    compute_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Identity, ownership, memory and capacity of what was loaded: `shard_description`."""

    artifact_sha256: str
    shard_sha256: str
    layer_start: int
    layer_end: int
    recipe: Recipe
    architecture: str
    model_name: str
    n_layer: int
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    n_embd_out: int
    """Values in a row of embeddings; 0 where the model gives none."""
    pooling: str
    """How the file says that one vector is made of such rows: none, mean, cls, last, rank."""
    owned_layers: int
    owned_tensors: int
    owned_bytes: int
    has_token_embedding: bool
    has_output_head: bool
    has_vocabulary: bool
    memory: Memory
    max_sessions: int
    kv_cells: int
    """Of all sessions together."""
    session_cells: int
    """Most that one session can take."""
    max_batch: int
    can_trim: bool
    """Whether sessions can be trimmed and forked at any position, or only at their end and at 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactFile:
    """One file of an artifact."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactInfo:
    """An artifact that was parsed and hashed, not loaded: `shard_artifact_info`, its files and the bytes
    of each of its layers (0 where a slice lacks the layer)."""

    artifact_sha256: str
    architecture: str
    model_name: str
    quantization: str
    n_layer: int
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    n_expert: int
    n_tensors: int
    tensor_bytes: int
    embedding_bytes: int
    head_bytes: int
    tied_head: bool
    is_slice: bool
    slice_start: int
    slice_end: int
    supported: bool
    cut_period: int
    reason: str
    files: tuple[ArtifactFile, ...]
    layer_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the last stage draws tokens: `shard_sampling`. The default is greedy and everything else off."""

    temperature: float = 0.0
    seed: int = 0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = 64
    """Rows back that count as seen; -1 is all of them."""
    logit_bias: Sequence[tuple[int, float]] = ()
    """Pairs of token id and what is added to its logit; -inf bans the token."""
    grammar: str = ""
    """GBNF; empty for none."""
    grammar_start: int | None = None
    """Position of the first row that the grammar governs; None is the session's length at its first draw."""
    top_logprobs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """A session that begins with rows of another one."""

    session: int
    kv_cells_taken: int


class Output(IntEnum):
    """`shard_output`: what an entry of a step gives back."""

    NONE = 0
    HIDDEN = 1
    LOGITS = 2
    LOGITS_ALL = 3
    TOKEN = 4
    EMBEDDING = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The rows of one session in a step.

    The first stage is given `tokens` (ids). Every other one is given `hidden`, rows of `n_embd` values each
    in the recipe's boundary dtype; and, where sampling looks at earlier tokens, the `tokens` that the rows
    stand for.
    """

    session: int
    position: int
    tokens: Sequence[int] | None = None
    hidden: bytes | bytearray | memoryview | None = None
    output: Output = Output.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of values, row-major, copied out of the engine: they stay valid."""

    data: bytes
    n_rows: int
    n_columns: int
    dtype: str
    """f32 for logits and embeddings; hidden rows have the recipe's boundary dtype."""

    def values(self) -> "memoryview[float]":
        """A memoryview of float32 of shape [n_rows, n_columns]. Those of f32 are not copied; values of 16
        bits are widened, which is exact."""
        return memoryview(_as_f32(self.data, self.dtype)).cast("f", (self.n_rows, self.n_columns))


def _as_f32(data: bytes, dtype: str) -> bytes:
    if dtype == "f32":
        return data
    n_values = len(data) // 2
    if dtype == "f16":
        return struct.pack(f"={n_values}f", *struct.unpack(f"={n_values}e", data))
    # A bf16 is the upper half of the float32 with the same value.
    return struct.pack(f"={n_values}I", *(half << 16 for half in struct.unpack(f"={n_values}H", data)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One token that could have been drawn."""

    token: int
    logprob: float
    text: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a step did with one entry. Where `error` is not None, the session is as it was before."""

    status: Status
    error: ShardEngineError | None
    rows: Rows | None
    token: int | None
    logprob: float
    """Natural logarithm of the token's probability by the logits as computed, before any sampler."""
    top: tuple[Candidate, ...]
    """The most likely tokens, best first; as many as `Sampling.top_logprobs`."""
    end_of_generation: bool
    text: bytes
    """What the token adds to a text; may end inside a UTF-8 sequence."""
    length: int
    kv_cells_taken: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInfo:
    """What one token is; `attributes` are llama.cpp's `llama_token_attr` bits."""

    attributes: int
    is_control: bool
    end_of_generation: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Special tokens; -1 where there is none."""

    n_tokens: int
    bos: int
    eos: int
    eot: int
    newline: int
    padding: int
    add_bos: bool
    add_eos: bool
