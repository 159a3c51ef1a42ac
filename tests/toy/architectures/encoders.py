"""Models that are no causal decoders: they read a whole text, or give no logits."""

from __future__ import annotations

from toy.architectures.compose import model
from toy.architectures.keys import ALL_HEADS, EXPERTS, SLIDING
from toy.architectures.variant import Keys, Variant

_TYPES: Keys = {".tokenizer.ggml.token_type_count": 2}

ENCODERS: tuple[Variant, ...] = (
    model("dream"),
    model("llada"),
    model("llada-moe", EXPERTS),
    model("rnd1", EXPERTS),
    model("bert", ALL_HEADS, _TYPES),
    model("modern-bert", ALL_HEADS),
    model("nomic-bert", ALL_HEADS, _TYPES),
    model("nomic-bert-moe", ALL_HEADS, _TYPES, EXPERTS, {"moe_every_n_layers": 2}),
    model("neo-bert", ALL_HEADS),
    model("jina-bert-v2", ALL_HEADS, _TYPES),
    model("jina-bert-v3", ALL_HEADS, _TYPES),
    model("eurobert"),
    model("gemma-embedding", SLIDING),
    model("llama-embed"),
    model("t5", ALL_HEADS, {"attention.relative_buckets_count": 8}),
    model("t5encoder", ALL_HEADS, {"attention.relative_buckets_count": 8}),
    # An image encoder, parts of other models, sounds, and one whose name alone is known.
    model("clip", is_shell=True),
    model("eagle3", is_shell=True),
    model("dflash", is_shell=True),
    model("gemma4-assistant", is_shell=True),
    model("wavtokenizer-dec", is_shell=True),
    model("gptj", is_shell=True),
)
