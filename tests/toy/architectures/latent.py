"""Decoders with latent attention (MLA), some with an indexer."""

from __future__ import annotations

from gguf import GGMLQuantizationType as Type

from toy.architectures.compose import HEAD, bare, model
from toy.architectures.keys import DENSE_FIRST, FURTHER, HEADS, INDEXER, LATENT, SHARED_EXPERT, per_layer
from toy.architectures.variant import Keys, Variant

_SCALED: Keys = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 40.0,
    "rope.scaling.original_context_length": 32,
    "rope.scaling.yarn_log_multiplier": 0.0707,
}

_WHOLE_HEADS: Keys = {
    "attention.head_count_kv": HEADS,
    "attention.q_lora_rank": 24,
    "attention.kv_lora_rank": 32,
    "attention.key_length": 24,
    "attention.value_length": 16,
    "rope.dimension_count": 8,
}
"""Latent attention whose cache holds keys and values of all heads, as files of an older kind have it."""

LATENT_ATTENTION: tuple[Variant, ...] = (
    *bare(model("deepseek2", LATENT, SHARED_EXPERT, DENSE_FIRST), HEAD),
    model("deepseek2", LATENT, SHARED_EXPERT, DENSE_FIRST, weights=Type.Q8_0, detail="q8_0"),
    model("deepseek2", LATENT, SHARED_EXPERT, DENSE_FIRST, _SCALED, detail="yarn"),
    model("deepseek2", _WHOLE_HEADS, SHARED_EXPERT, DENSE_FIRST, detail="whole-heads"),
    model("deepseek32", LATENT, SHARED_EXPERT, DENSE_FIRST, INDEXER, FURTHER, detail="further"),
    # By this count the library knows a size without a low rank for queries,
    model("deepseek2", LATENT, SHARED_EXPERT, DENSE_FIRST, {"block_count": 26}, detail="lite"),
    # and so it would a shard of as many layers.
    model(
        "deepseek2",
        LATENT,
        SHARED_EXPERT,
        DENSE_FIRST,
        {"block_count": 52},
        detail="52",
        cuts=((24,), (10, 32)),
    ),
    *bare(model("deepseek32", LATENT, SHARED_EXPERT, DENSE_FIRST, INDEXER), HEAD),
    *bare(model("glm-dsa", LATENT, SHARED_EXPERT, DENSE_FIRST, INDEXER), HEAD),
    model("glm-dsa", LATENT, SHARED_EXPERT, DENSE_FIRST, INDEXER, FURTHER, detail="further"),
    model(
        "glm-dsa",
        LATENT,
        SHARED_EXPERT,
        DENSE_FIRST,
        INDEXER,
        {"context_length": 1 << 20, "attention.indexer.types": per_layer(lambda layer: int(layer % 3 == 0))},
        detail="shared-index",
        cuts=((6,), (3, 9)),
    ),
    *bare(model("mistral4", LATENT, SHARED_EXPERT, DENSE_FIRST), HEAD),
    model(
        "minicpm3",
        {
            "attention.q_lora_rank": 24,
            "attention.kv_lora_rank": 32,
            "attention.key_length": 24,
            "rope.dimension_count": 8,
            "attention.head_count_kv": 4,
        },
    ),
    model(
        "minimax-m3",
        SHARED_EXPERT,
        DENSE_FIRST,
        INDEXER,
        {
            "attention.indexer.head_count": 2,
            "attention.indexer.block_size": 4,
            "attention.indexer.local_blocks": 1,
        },
    ),
)
