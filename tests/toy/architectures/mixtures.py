"""Decoders with a mixture of experts."""

from __future__ import annotations

from gguf import GGMLQuantizationType as Type

from toy.architectures.compose import BIASES, HEAD, bare, model
from toy.architectures.dense import SCALES
from toy.architectures.keys import (
    ALL_HEADS,
    DENSE_FIRST,
    EXPERTS,
    FURTHER,
    SECTIONS,
    SHARED_EXPERT,
)
from toy.architectures.variant import Variant

MIXTURES: tuple[Variant, ...] = (
    *bare(model("llama", EXPERTS, detail="experts"), HEAD, BIASES),
    model("llama", EXPERTS, weights=Type.Q8_0, detail="experts-q8_0"),
    *bare(model("mistral3", EXPERTS, detail="experts"), HEAD),
    *bare(model("arctic", EXPERTS), HEAD),
    model("bailingmoe", SHARED_EXPERT, DENSE_FIRST),
    model("bailingmoe2", SHARED_EXPERT, DENSE_FIRST),
    model("dbrx", EXPERTS, {"attention.clamp_kqv": 1.5}),
    *bare(model("deepseek", SHARED_EXPERT, DENSE_FIRST, ALL_HEADS), HEAD),
    *bare(model("deepseek2-ocr", SHARED_EXPERT, DENSE_FIRST, ALL_HEADS), HEAD),
    model("dots1", SHARED_EXPERT, DENSE_FIRST, ALL_HEADS),
    *bare(model("ernie4_5-moe", SHARED_EXPERT, DENSE_FIRST, {"interleave_moe_layer_step": 1}), HEAD),
    model(
        "ernie4_5-moe", SHARED_EXPERT, DENSE_FIRST, {"interleave_moe_layer_step": 2}, detail="every-second"
    ),
    *bare(model("glm4moe", SHARED_EXPERT, DENSE_FIRST), HEAD),
    model("glm4moe", SHARED_EXPERT, DENSE_FIRST, SECTIONS, FURTHER, detail="further"),
    *bare(model("granite", SCALES, SHARED_EXPERT, detail="experts"), HEAD),
    *bare(model("granitemoe", SCALES, SHARED_EXPERT), HEAD),
    *bare(model("grok", EXPERTS, {"feed_forward_length": 64, "expert_feed_forward_length": 48}), HEAD),
    *bare(
        model(
            "grovemoe",
            EXPERTS,
            {"expert_group_scale": 0.5, "experts_per_group": 2, "expert_chunk_feed_forward_length": 16},
        ),
        HEAD,
    ),
    *bare(model("hunyuan-moe", SHARED_EXPERT), HEAD),
    *bare(model("hy_v3", SHARED_EXPERT), HEAD),
    model("hy_v3", SHARED_EXPERT, FURTHER, detail="further"),
    *bare(model("minicpm", EXPERTS, detail="experts"), HEAD),
    model("minimax-m2", EXPERTS, {"expert_gating_func": 2}),
    model("olmoe", EXPERTS, ALL_HEADS),
    model("phimoe", EXPERTS),
    model("qwen2moe", SHARED_EXPERT),
    *bare(model("qwen3moe", EXPERTS), HEAD),
    model("qwen3moe", EXPERTS, weights=Type.Q4_0, detail="q4_0"),
    *bare(model("qwen3vlmoe", EXPERTS, SECTIONS), HEAD),
    *bare(model("paddleocr", EXPERTS, SECTIONS, detail="experts"), HEAD),
    *bare(model("refact", EXPERTS, detail="experts"), HEAD),
)
