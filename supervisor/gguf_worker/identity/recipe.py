"""The recipe: every setting that can change a result, and no other (docs/protocol.md, section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from gguf_worker._schema import Float32, Int32, Name, Uint32, WireMap

DTYPE_BYTES: Final = {"f32": 4, "f16": 2, "bf16": 2}
"""Bytes of one value of each dtype that rows can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(WireMap):
    """How a shard is executed. A field that we do not know could change results, so it is refused."""

    is_closed: ClassVar[bool] = True

    n_ctx: Uint32 = 4096
    """Rows that one session can reach, a multiple of 256; with `kv_unified` also the KV cells that all
    sessions share."""
    n_batch: Uint32 = 512
    """Most rows in one step."""
    n_ubatch: Uint32 = 128
    """Most rows computed at once; at most `n_batch`."""
    prefill_chunk: Uint32 = 0
    """Most rows of one session in one step, at most `n_batch`. 0 stands for `n_ubatch`; a loaded recipe says
    how many."""
    n_threads: Uint32 = 0
    """Threads that compute: their number decides in which order some sums are made. 0 lets the engine choose;
    a loaded recipe says how many it took."""
    flash_attn: bool = True
    """Flash attention on or off; never "auto", so that it is exact."""
    repack: bool = True
    """Weight repacking into the backend's own layouts."""
    kv_unified: bool = True
    """Whether all sessions share `n_ctx` KV cells. Otherwise each has `n_ctx` of its own, and what others do
    with theirs cannot change its results."""
    n_gpu_layers: Int32 = 0
    """Layers offloaded; 0 is none, negative is all."""
    main_gpu: Int32 = 0
    """The device that holds the model where `split_mode` is none."""
    split_mode: Name = "layer"
    """How layers are spread over devices: none, layer or row."""
    type_k: Name = "f16"
    """ggml type of the K cache."""
    type_v: Name = "f16"
    """ggml type of the V cache; quantised types need `flash_attn`."""
    boundary: Name = "f32"
    """dtype of the hidden rows between stages: f32, f16 or bf16."""
    rope_scaling: Name = "model"
    """How RoPE is scaled: model (what the file says), none, linear, yarn or longrope."""
    rope_freq_base: Float32 = 0.0
    """Base frequency of RoPE; 0 is the model's."""
    rope_freq_scale: Float32 = 0.0
    """Frequency scale of RoPE; 0 is the model's."""
    yarn_ext_factor: Float32 = -1.0
    """YaRN extrapolation mix; negative is the model's."""
    yarn_attn_factor: Float32 = -1.0
    """YaRN magnitude scale; negative is the model's."""
    yarn_beta_fast: Float32 = -1.0
    """YaRN low correction dimension; negative is the model's."""
    yarn_beta_slow: Float32 = -1.0
    """YaRN high correction dimension; negative is the model's."""
    yarn_orig_ctx: Uint32 = 0
    """Context that the model was trained with; 0 is the model's."""

    def __post_init__(self) -> None:
        self.settle()
