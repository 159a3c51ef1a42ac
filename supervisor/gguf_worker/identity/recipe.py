"""The recipe: every setting that can change a result, and no other (docs/protocol.md, section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gguf_worker._schema import Int32, Name, Uint32, WireMap


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(WireMap):
    """How a shard is executed. A field that we do not know could change results, so it is refused."""

    is_closed: ClassVar[bool] = True

    n_ctx: Uint32 = 4096
    """KV cells shared by all sessions of a worker; also the length that one session can reach."""
    n_batch: Uint32 = 512
    """Most rows in one step."""
    n_ubatch: Uint32 = 512
    """Most rows computed at once; at most `n_batch`."""
    n_threads: Uint32 = 0
    """Threads that compute: their number decides in which order some sums are made. 0 lets the engine choose;
    a loaded recipe says how many it took."""
    flash_attn: bool = True
    """Flash attention on or off; never "auto", so that it is exact."""
    repack: bool = True
    """Weight repacking into the backend's own layouts."""
    n_gpu_layers: Int32 = 0
    """Layers offloaded; 0 is none, negative is all."""
    type_k: Name = "f16"
    """ggml type of the K cache."""
    type_v: Name = "f16"
    """ggml type of the V cache; quantised types need `flash_attn`."""
    boundary: Name = "f32"
    """dtype of the hidden rows between stages."""
