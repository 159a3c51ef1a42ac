"""The values that cross the seam. All are frozen; sizes are bytes, rows and positions count tokens."""

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
    n_ubatch: int = 512
    n_threads: int = 0
    """0 lets the engine choose; a description says how many it took."""
    flash_attn: bool = True
    repack: bool = True
    n_gpu_layers: int = 0
    type_k: str = "f16"
    type_v: str = "f16"
    boundary: str = "f32"


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
    pin_matches: bool
    devices: tuple[Device, ...]


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
    owned_layers: int
    owned_tensors: int
    owned_bytes: int
    has_token_embedding: bool
    has_output_head: bool
    has_vocabulary: bool
    weights_bytes: int
    kv_bytes: int
    compute_bytes: int
    max_sessions: int
    kv_cells: int
    max_batch: int


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


class Output(IntEnum):
    """`shard_output`: what an entry of a step gives back."""

    NONE = 0
    HIDDEN = 1
    LOGITS = 2
    LOGITS_ALL = 3
    TOKEN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The rows of one session in a step.

    Exactly one of `tokens` (ids) and `hidden` is given: `hidden` is a contiguous buffer of rows of
    `n_embd` native float32 each, and is copied.
    """

    session: int
    position: int
    tokens: Sequence[int] | None = None
    hidden: bytes | bytearray | memoryview | None = None
    output: Output = Output.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of float32, row-major, copied out of the engine: they stay valid."""

    data: bytes
    n_rows: int
    n_columns: int

    def values(self) -> "memoryview[float]":
        """The values without a copy: a memoryview of floats of shape [n_rows, n_columns]."""
        return memoryview(self.data).cast("f", (self.n_rows, self.n_columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a step did with one entry. Where `error` is not None, the session is as it was before."""

    status: Status
    error: ShardEngineError | None
    rows: Rows | None
    token: int | None
    logprob: float
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
