"""The kinds of toy model: one line says what is particular about each."""

from __future__ import annotations

from dataclasses import dataclass

from gguf import GGMLQuantizationType as Type
from gguf import PoolingType


@dataclass(frozen=True, slots=True, kw_only=True)
class Toy:
    """The shape of one toy model of architecture `llama`.

    Row lengths are multiples of 256 so that every quantised type of the library fits.
    """

    weights: Type = Type.F32
    """ggml type of every matrix; norms, biases and the expert router stay f32."""
    embedding: Type | None = None
    """ggml type of the token embedding and the head; None: the same as `weights`."""
    tied: bool = True
    """The head is the token embedding; otherwise `output.weight` is a matrix of its own."""
    experts: int = 0
    """Experts per layer; 0 is a dense model."""
    experts_used: int = 0
    files: int = 1
    """Files of the split set; 1 is a single file."""
    vocabulary: str = "spm"
    """`spm` (SentencePiece with byte tokens) or `bpe` (GPT-2 bytes and merges)."""
    further_tokens: int = 0
    """Tokens of an `spm` vocabulary that are in no text; without them it has 315."""
    biases: bool = False
    """Bias vectors on attention and feed-forward matrices."""
    rope_factors: bool = False
    """A `rope_freqs.weight` tensor, which belongs to no layer but is needed by all."""
    arrays: bool = False
    """KV heads and feed-forward length are metadata arrays with one value per layer."""
    pooling: PoolingType | None = None
    """How the metadata say that one embedding is made of many rows; None: they do not."""
    layers: int = 6
    embd: int = 256
    heads: int = 4
    kv_heads: int = 2
    ff: int = 512
    alignment: int = 32
    """Of the tensors in the file; another than 32 is said in its metadata."""
    seed: int = 1

    @property
    def head_type(self) -> Type:
        return self.weights if self.embedding is None else self.embedding


QUANTISED = tuple(
    t
    for t in Type
    if t.name.startswith(("Q2_", "Q3_", "Q4_", "Q5_", "Q6_", "Q8_0", "IQ", "TQ", "MXFP", "NVFP"))
)
"""Every quantised type that a model file may hold (Q8_1 and Q8_K exist in memory only)."""

KINDS: dict[str, Toy] = {
    "llama-f32-tied": Toy(),
    "llama-f32-untied": Toy(tied=False),
    "llama-f16": Toy(weights=Type.F16, tied=False),
    "llama-bf16": Toy(weights=Type.BF16, tied=False),
    **{
        # The quantisers of the IQ types search for a long time, so those models are short.
        f"llama-{t.name.lower()}": Toy(weights=t, tied=False, layers=3 if t.name.startswith("IQ") else 6)
        for t in QUANTISED
    },
    "llama-q8_0-tied": Toy(weights=Type.Q8_0),
    "llama-q4_k-tied": Toy(weights=Type.Q4_K, embedding=Type.Q6_K),
    # 320 rows of the head are a multiple of 8, so that the library repacks a copy of it.
    "llama-q4_k-repacked-head": Toy(weights=Type.Q4_K, further_tokens=5),
    "llama-moe4": Toy(experts=4, experts_used=2, tied=False),
    "llama-moe8-q8_0": Toy(weights=Type.Q8_0, experts=8, experts_used=2, ff=256),
    "llama-moe4-q4_k": Toy(weights=Type.Q4_K, experts=4, experts_used=2, tied=False),
    "llama-split": Toy(weights=Type.Q8_0, tied=False, files=3),
    "llama-split-tied": Toy(weights=Type.Q4_K, embedding=Type.Q6_K, files=3),
    "llama-bpe": Toy(weights=Type.Q8_0, vocabulary="bpe"),
    "llama-biases": Toy(weights=Type.Q8_0, biases=True),
    "llama-rope-factors": Toy(weights=Type.Q8_0, rope_factors=True),
    "llama-arrays": Toy(weights=Type.Q8_0, arrays=True),
    "llama-pooled": Toy(weights=Type.Q8_0, pooling=PoolingType.LAST),
    "llama-one-layer": Toy(weights=Type.Q8_0, layers=1),
    "llama-f16-long": Toy(weights=Type.F16, layers=12),
}
