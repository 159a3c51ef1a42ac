"""Decoders whose layers are all alike: attention and one feed-forward network."""

from __future__ import annotations

from gguf import GGMLQuantizationType as Type

from toy.architectures.compose import BIASES, HEAD, ROPE, bare, fused, model
from toy.architectures.keys import ALL_HEADS, ONE_HEAD, SECTIONS, per_layer
from toy.architectures.variant import Keys, Variant

SCALES: Keys = {"embedding_scale": 1.7, "residual_scale": 0.6, "attention.scale": 0.3, "logit_scale": 1.4}

_HETEROGENEOUS: Keys = {
    "attention.head_count": per_layer(lambda layer: 0 if layer == 5 else 4),
    "attention.head_count_kv": per_layer(lambda layer: 0 if layer in (5, 7) else 2 + 2 * (layer % 2)),
    "feed_forward_length": per_layer(lambda layer: 0 if layer == 9 else 64 + 32 * (layer % 3)),
}
"""Layers of different widths; some without attention or feed-forward network."""

_GROWING: Keys = {
    "attention.head_count": per_layer(lambda layer: 2 + 2 * (layer // 4)),
    "attention.head_count_kv": per_layer(lambda layer: 1 + layer // 4),
    "attention.key_length": 16,
    "attention.value_length": 16,
    "feed_forward_length": per_layer(lambda layer: 64 + 32 * (layer // 3)),
}
"""Heads and feed-forward networks that grow with depth."""

DENSE: tuple[Variant, ...] = (
    *bare(model("llama"), HEAD, BIASES, ROPE),
    fused(model("llama"), BIASES),
    model("llama", {"feed_forward_length": per_layer(lambda _: 96)}, detail="arrays"),
    model(
        "llama",
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 128,
            "rope.freq_base": 50000.0,
        },
        detail="yarn",
        without=(ROPE,),
    ),
    model("llama", weights=Type.Q8_0, detail="q8_0"),
    model("llama", weights=Type.Q4_0, detail="q4_0"),
    *bare(model("deci"), HEAD, BIASES, ROPE),
    model("deci", _HETEROGENEOUS, detail="heterogeneous"),
    *bare(model("mistral3"), HEAD, BIASES),
    model(
        "mistral3",
        {"attention.temperature_scale": 0.1, "rope.scaling.original_context_length": 16},
        detail="temperature",
    ),
    *bare(model("arcee"), HEAD, BIASES),
    model(
        "apertus",
        {".xielu.alpha_n": 0.7, ".xielu.alpha_p": 0.9, ".xielu.beta": 0.5, ".xielu.eps": 1e-6},
    ),
    model(
        "apertus",
        {
            ".xielu.alpha_n": per_layer(lambda layer: 0.5 + layer / 16),
            ".xielu.alpha_p": per_layer(lambda layer: 0.9 - layer / 32),
            ".xielu.beta": per_layer(lambda layer: 0.4 + layer / 64),
            ".xielu.eps": per_layer(lambda layer: 1e-6 * (layer + 1)),
        },
        detail="arrays",
    ),
    *bare(model("baichuan"), BIASES),
    # By these counts the library rotates heads or uses ALiBi; else it does neither.
    model("baichuan", {"block_count": 32}, detail="7b"),
    model("baichuan", {"block_count": 40}, detail="13b"),
    model("bitnet"),
    *bare(model("chatglm"), HEAD),
    fused(model("chatglm")),
    model("codeshell"),
    fused(model("codeshell")),
    *bare(model("command-r"), BIASES),
    *bare(model("exaone"), HEAD, ROPE),
    *bare(model("exaone4"), HEAD, ROPE),
    *bare(model("falcon", ALL_HEADS), HEAD, "*.attn_norm_2.*"),
    model("falcon", ONE_HEAD, detail="one-head"),
    *bare(model("glm4"), HEAD, BIASES),
    model("glm4", SECTIONS, detail="sections"),
    *bare(model("gpt2", ALL_HEADS), HEAD),
    model("gptneox", ALL_HEADS, {"use_parallel_residual": True}),
    model("gptneox", ALL_HEADS, {"use_parallel_residual": False}, detail="serial"),
    *bare(model("granite", SCALES), HEAD, BIASES, ROPE),
    model("granite", {"logit_scale": 1.4, "rope.scaling.finetuned": False}, detail="nope"),
    *bare(model("hunyuan-dense"), HEAD, BIASES),
    *bare(model("internlm2"), BIASES),
    *bare(model("jais2"), HEAD),
    model("jais", ALL_HEADS, {"attention.max_alibi_bias": 8.0}),
    *bare(model("maincoder"), HEAD, BIASES),
    *bare(model("minicpm"), HEAD, BIASES, ROPE),
    model("minicpm", SCALES, detail="scales"),
    *bare(
        model("mpt", ALL_HEADS, {"attention.max_alibi_bias": 8.0, "attention.clamp_kqv": 1.5}), HEAD, BIASES
    ),
    model("mpt", ALL_HEADS, detail="positions"),
    *bare(model("nanbeige"), HEAD),
    model("nanbeige", {"num_loops": 2}, detail="loops"),
    model("nemotron"),
    *bare(model("olmo", {"attention.clamp_kqv": 1.5}), HEAD),
    model("olmo2"),
    model("openelm", _GROWING),
    model("orion"),
    model("pangu-embedded"),
    model("phi2", ALL_HEADS),
    fused(model("phi2", ALL_HEADS)),
    *bare(model("phi3"), HEAD, ROPE),
    fused(model("phi3")),
    model("plamo"),
    model("qwen", ALL_HEADS),
    *bare(model("qwen2"), HEAD),
    *bare(model("qwen3"), HEAD),
    *bare(model("refact", ONE_HEAD), HEAD),
    *bare(model("seed_oss"), HEAD),
    *bare(model("stablelm", ALL_HEADS), "*.attn_q_norm.weight", "*.attn_k_norm.weight", "*.ffn_norm.*"),
    *bare(model("starcoder", ONE_HEAD), HEAD),
    *bare(model("starcoder2"), HEAD),
    model("talkie", {"logit_scale": 1.4}),
    model("xverse"),
    *bare(model("smollm3"), HEAD),
    *bare(model("ernie4_5"), HEAD, BIASES),
    *bare(model("paddleocr", SECTIONS), HEAD),
    *bare(model("qwen2vl", SECTIONS), HEAD),
    *bare(model("qwen3vl", SECTIONS), HEAD),
    model("qwen3vl", SECTIONS, {"n_deepstack_layers": 3}, detail="deepstack"),
    *bare(model("hunyuan_vl", SECTIONS), HEAD),
)
