"""Decoders that do something to their input, or between layers, which no others do."""

from __future__ import annotations

from toy.architectures.compose import HEAD, bare, model
from toy.architectures.dense import SCALES
from toy.architectures.keys import (
    ALL_HEADS,
    DELTA,
    DENSE_FIRST,
    HYPER,
    INDEXER,
    KIMI_DELTA,
    LATENT,
    SECTIONS,
    SHARED_EXPERT,
    SLIDING,
    every,
    per_layer,
    window_pattern,
)
from toy.architectures.variant import Keys, Variant

_GEMMA4: Keys = {
    "embedding_length_per_layer_input": 16,
    "attention.key_length_swa": 16,
    "attention.value_length_swa": 16,
    "attention.shared_kv_layers": 0,
}

PARTICULAR: tuple[Variant, ...] = (
    model("gemma"),
    model("gemma2", SLIDING, {"attn_logit_softcapping": 20.0, "final_logit_softcapping": 15.0}),
    model("gemma2", SLIDING, {"block_count": 46}, detail="27b"),
    model("gemma3n", SLIDING, {"block_count": 25}),
    model("gemma4", window_pattern(5), _GEMMA4),
    model("gemma4", window_pattern(5), _GEMMA4, {"embedding_length_per_layer_input": 0}, detail="dense"),
    *bare(model("afmoe", SLIDING, SHARED_EXPERT, DENSE_FIRST), HEAD),
    *bare(model("bloom", ALL_HEADS), HEAD),
    *bare(model("cogvlm", ALL_HEADS), HEAD),
    model(
        "graniteswitch",
        SCALES,
        {
            "adapters.count": 2,
            "adapters.lora_rank": 4,
            "adapters.token_ids_activate": [40, 77],
            "adapters.token_ids_substitute": [41, 78],
        },
    ),
    *bare(model("chameleon", tokens=8192), HEAD),
    model(
        "hrm_text", {"hrm.layers_per_stack": 2, "hrm.h_cycles": 2, "hrm.l_cycles": 2, "embedding_scale": 1.5}
    ),
    model(
        "deepseek4",
        SHARED_EXPERT,
        INDEXER,
        HYPER,
        SLIDING,
        {
            "attention.head_count_kv": 1,
            "attention.key_length": 32,
            "attention.value_length": 32,
            "rope.dimension_count": 16,
            "attention.q_lora_rank": 24,
            "attention.output_group_count": 2,
            "attention.output_lora_rank": 8,
            "attention.compress_ratios": per_layer(lambda layer: (0, 0, 4, 128)[layer % 4]),
            "attention.compress_rope_freq_base": 20000.0,
            "hash_layer_count": 0,
            "swiglu_clamp_exp": 10.0,
            "expert_gating_func": 4,
        },
    ),
    model(
        "plm",
        ALL_HEADS,
        {"attention.kv_lora_rank": 32, "attention.key_length": 24, "rope.dimension_count": 8},
    ),
    model("qwen3tts", SECTIONS),
    model("pockettts", ALL_HEADS),
    model("qwen4exp", DELTA, SHARED_EXPERT, SECTIONS, HYPER, INDEXER),
    model(
        "glm5-next",
        KIMI_DELTA,
        LATENT,
        SHARED_EXPERT,
        DENSE_FIRST,
        HYPER,
        INDEXER,
        {
            "attention.head_count_kv": every(4, 1, 0),
            "attention.indexer.kpool": 4,
            "rope.dimension_count": 0,
            "attention.key_length": 32,
        },
    ),
    model(
        "hy_v4",
        LATENT,
        SHARED_EXPERT,
        DENSE_FIRST,
        HYPER,
        INDEXER,
        {"attention.indexer.types": every(2, 0, 1)},
    ),
    model(
        "dots3note",
        LATENT,
        SHARED_EXPERT,
        DENSE_FIRST,
        INDEXER,
        window_pattern(2),
        {
            "attention.kv_lora_rank_swa": 32,
            "attention.key_length_swa": 40,
            "attention.value_length_swa": 32,
            "attention.key_length_mla_swa": 24,
            "attention.value_length_mla_swa": 16,
            "rope.freq_base_swa": 5000.0,
            "attention.indexer.types": every(2, 1, 0),
        },
    ),
)
