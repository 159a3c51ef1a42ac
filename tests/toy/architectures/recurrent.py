"""Decoders with a recurrent state in place of attention, or beside it."""

from __future__ import annotations

from gguf import GGMLQuantizationType as Type

from toy.architectures.compose import HEAD, bare, model
from toy.architectures.dense import SCALES
from toy.architectures.keys import (
    DELTA,
    DENSE_FIRST,
    EXPERTS,
    FURTHER,
    KIMI_DELTA,
    LATENT,
    SECTIONS,
    SHARED_EXPERT,
    SLIDING,
    STATE,
    attention_every,
    every,
    per_layer,
)
from toy.architectures.variant import Keys, Variant

NO_ATTENTION: Keys = {"attention.head_count": 0, "attention.head_count_kv": 0, "feed_forward_length": 0}

RWKV: Keys = {
    **NO_ATTENTION,
    "embedding_length": 128,
    "wkv.head_size": 64,  # the library computes smaller heads with what lies behind them
    "feed_forward_length": 96,
    "time_mix_extra_dim": 8,
    "time_decay_extra_dim": 8,
    "attention.decay_lora_rank": 8,
    "attention.iclr_lora_rank": 8,
    "attention.value_residual_mix_lora_rank": 8,
    "attention.gate_lora_rank": 8,
    "token_shift_count": 2,
}

_NEMOTRON: Keys = {
    **STATE,
    "attention.head_count_kv": per_layer(lambda layer: 2 if layer % 6 == 3 else 0),
    "feed_forward_length": per_layer(lambda layer: 96 if layer % 2 == 1 and layer % 6 != 3 else 0),
}

RECURRENT: tuple[Variant, ...] = (
    *bare(model("mamba", STATE, NO_ATTENTION), HEAD),
    *bare(model("mamba2", STATE, NO_ATTENTION), HEAD),
    model("rwkv6", RWKV),
    model(
        "rwkv6qwen2",
        RWKV,
        {"token_shift_count": 1, "attention.head_count": 2, "attention.head_count_kv": 1},
        without=("*.time_mix_first.weight",),
    ),
    model("rwkv7", RWKV),
    model("arwkv7", RWKV, {"token_shift_count": 1}),
    *bare(model("jamba", STATE, EXPERTS, attention_every(4)), HEAD),
    *bare(model("falcon-h1", STATE), HEAD),
    *bare(model("granitehybrid", STATE, SCALES, SHARED_EXPERT, attention_every(4)), HEAD),
    model("granitehybrid", STATE, SCALES, attention_every(4), detail="dense"),
    *bare(model("lfm2", {"shortconv.l_cache": 3}, attention_every(3)), HEAD),
    *bare(model("lfm2moe", {"shortconv.l_cache": 3}, SHARED_EXPERT, DENSE_FIRST, attention_every(3)), HEAD),
    *bare(model("nemotron_h", _NEMOTRON), HEAD),
    *bare(model("nemotron_h_moe", _NEMOTRON, SHARED_EXPERT), HEAD),
    model("plamo2", STATE, attention_every(2), {"ssm.group_count": 0}),
    *bare(model("qwen3next", DELTA, SHARED_EXPERT), HEAD),
    model("qwen3next", DELTA, SHARED_EXPERT, weights=Type.Q8_0, detail="q8_0"),
    *bare(model("qwen35", DELTA, SECTIONS), HEAD),
    model("qwen35", DELTA, SECTIONS, FURTHER, detail="further"),
    model("qwen3next", DELTA, SHARED_EXPERT, FURTHER, detail="further"),
    model(
        "qwen3next",
        DELTA,
        SHARED_EXPERT,
        {"attention.recurrent_layers": every(3, False, True)},
        detail="list",
    ),
    model("lfm2", {"shortconv.l_cache": 3}, SLIDING, attention_every(3), detail="windows"),
    *bare(model("qwen35moe", DELTA, SHARED_EXPERT, SECTIONS), HEAD),
    model(
        "kimi-linear",
        KIMI_DELTA,
        LATENT,
        SHARED_EXPERT,
        DENSE_FIRST,
        {"attention.head_count_kv": every(4, 1, 0)},
    ),
    model(
        "kimi-k3",
        KIMI_DELTA,
        LATENT,
        SHARED_EXPERT,
        DENSE_FIRST,
        {
            "attention.head_count_kv": every(4, 1, 0),
            "attn_res.block_size": 4,
            "activation.situ_beta": 4.0,
            "activation.situ_linear_beta": 25.0,
        },
    ),
    model(
        "bailingmoe3",
        KIMI_DELTA,
        LATENT,
        SHARED_EXPERT,
        DENSE_FIRST,
        {"attention.head_count_kv": every(4, 1, 0)},
    ),
    model("minimax-01", EXPERTS, {"residual_scale": 0.6, "full_attention_interval": 4}),
)
