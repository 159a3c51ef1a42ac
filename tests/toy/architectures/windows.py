"""Decoders of which some layers see a window of the last rows only."""

from __future__ import annotations

from gguf import GGMLQuantizationType as Type

from toy.architectures.compose import BIASES, HEAD, bare, model
from toy.architectures.dense import SCALES
from toy.architectures.keys import (
    DENSE_FIRST,
    EXPERTS,
    FURTHER,
    LAYERS,
    SHARED_EXPERT,
    SLIDING,
    every,
    window_pattern,
)
from toy.architectures.variant import Keys, Variant

_SAID: Keys = {"attention.sliding_window_pattern": 3}
"""A period that differs from the architecture's own."""

WINDOWS: tuple[Variant, ...] = (
    *bare(model("cohere2", SLIDING, {"logit_scale": 1.4}), BIASES),
    model("cohere2", SLIDING, _SAID, {"logit_scale": 1.4}, detail="period"),
    *bare(model("cohere2moe", SLIDING, SHARED_EXPERT, DENSE_FIRST, {"logit_scale": 1.4}), HEAD),
    model("exaone-moe", SLIDING, SHARED_EXPERT, DENSE_FIRST),
    *bare(model("gemma3", SLIDING), HEAD),
    model("gemma3", detail="full"),
    model(
        "gemma3",
        SLIDING,
        {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0, "final_logit_softcapping": 3.0},
        detail="scaling",
    ),
    model("gemma3", window_pattern(LAYERS + 1), detail="windows-only"),
    model("gemma3", SLIDING, weights=Type.Q8_0, detail="q8_0"),
    # By this count the library scales attention otherwise, and so it does with 46 layers of gemma2.
    model("gemma3", SLIDING, {"block_count": 62}, detail="27b"),
    model("gemma3", window_pattern(2), detail="array"),
    model("gpt-oss", SLIDING, EXPERTS),
    *bare(
        model("granite_swa", SCALES, window_pattern(3), {"attention.rope_pattern": every(3, False, True)}),
        HEAD,
    ),
    *bare(model("granite_swa", SCALES, EXPERTS, window_pattern(2), detail="experts"), HEAD),
    *bare(model("laguna", SLIDING, SHARED_EXPERT, DENSE_FIRST), HEAD),
    *bare(model("llama4", EXPERTS, {"interleave_moe_layer_step": 1}), HEAD),
    model("llama4", EXPERTS, {"interleave_moe_layer_step": 2}, detail="every-second"),
    model("maple", window_pattern(2), EXPERTS, {"swiglu_clamp_exp": 7.0}),
    model("mellum", SLIDING, EXPERTS),
    model("mellum", EXPERTS, detail="full"),
    model("mimo2", window_pattern(4), EXPERTS, {"expert_gating_func": 2}),
    model("muse-glimmer", SLIDING, {"logit_scale": 1.4}),
    model("olmo2", SLIDING, detail="windows"),
    *bare(model("plamo3", SLIDING, {"block_count": 16}), HEAD),
    model("plamo3", detail="full"),
    *bare(model("smallthinker", EXPERTS, SLIDING, {"block_count": 16, "expert_gating_func": 2}), HEAD),
    model("smallthinker", EXPERTS, {"block_count": 16, "expert_gating_func": 1}, detail="full"),
    model("spark2_5", window_pattern(4)),
    model(
        "step35",
        window_pattern(4, LAYERS + 1),
        SHARED_EXPERT,
        FURTHER,
        {"rope.dimension_count": 8},
        detail="further",
    ),
    model(
        "mimo2", window_pattern(4, LAYERS + 1), EXPERTS, FURTHER, {"expert_gating_func": 2}, detail="further"
    ),
    model("step35", window_pattern(4), SHARED_EXPERT, {"rope.dimension_count": 8}),
    model("phi3", SLIDING, detail="windows"),
    *bare(model("exaone4", {"block_count": 64}, detail="windows"), HEAD),
)
