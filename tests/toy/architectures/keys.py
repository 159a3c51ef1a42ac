"""Hyper-parameters that several architectures share.

The numbers are small, and differ from each other where they may, so that nothing fits by accident.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from toy.architectures.variant import Keys

LAYERS = 12
EMBD = 64
HEADS = 4
WINDOW = 16
"""Of sliding-window attention: shorter than the prompts of the tests, so that rows leave it."""

PLAIN: Keys = {
    "context_length": 512,
    "embedding_length": EMBD,
    "block_count": LAYERS,
    "feed_forward_length": 96,
    "attention.head_count": HEADS,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.layer_norm_epsilon": 1e-5,
}

ALL_HEADS: Keys = {"attention.head_count_kv": HEADS}
"""As many heads for keys and values as for queries."""

ONE_HEAD: Keys = {"attention.head_count_kv": 1}

EXPERTS: Keys = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}

SHARED_EXPERT: Keys = {
    **EXPERTS,
    "expert_shared_count": 1,
    "expert_shared_feed_forward_length": 48,
    "expert_weights_scale": 1.5,
    "expert_weights_norm": True,
    "expert_gating_func": 2,  # sigmoid
}

FURTHER: Keys = {"block_count": LAYERS + 1, "nextn_predict_layers": 1}
"""One more layer, which predicts the token after the next one."""

DENSE_FIRST: Keys = {"leading_dense_block_count": 2}

SECTIONS: Keys = {"rope.dimension_sections": [2, 3, 3, 0]}
"""How M-RoPE divides the pairs of a head among its positions."""

SLIDING: Keys = {"attention.sliding_window": WINDOW}

LATENT: Keys = {
    **ONE_HEAD,
    "attention.q_lora_rank": 24,
    "attention.kv_lora_rank": 32,
    "attention.key_length": 40,  # of the cache: the latent and what is rotated
    "attention.value_length": 32,
    "attention.key_length_mla": 24,
    "attention.value_length_mla": 16,
    "rope.dimension_count": 8,
}
"""Multi-head latent attention."""

INDEXER: Keys = {
    "attention.indexer.head_count": 4,
    "attention.indexer.key_length": 64,
    "attention.indexer.top_k": 8,
}
"""Sparse attention: an indexer chooses the rows that are attended to."""

STATE: Keys = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 2 * EMBD,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 8,
    "ssm.group_count": 2,
}
"""A recurrent state in place of, or beside, attention."""

DELTA: Keys = {**STATE, "ssm.inner_size": 4 * 16, "ssm.time_step_rank": 4, "full_attention_interval": 4}
"""Gated delta net on three layers of four."""

KIMI_DELTA: Keys = {
    "ssm.conv_kernel": 4,
    "kda.head_dim": 16,
    "kda.safe_gate": True,
    "kda.gate_lower_bound": -5.0,
}

HYPER: Keys = {
    "hyper_connection.count": 4,
    "hyper_connection.sinkhorn_iterations": 2,
    "hyper_connection.epsilon": 1e-6,
    "hyper_connection.low_rank": 8,
    "hyper_connection.magnitude": 2.0,
}

T = TypeVar("T", int, float, bool)


def per_layer(value: Callable[[int], T], layers: int = LAYERS) -> Sequence[T]:
    """A key that has one value per layer."""
    return [value(layer) for layer in range(layers)]


def every(period: int, value: T, other: T, layers: int = LAYERS) -> Sequence[T]:
    """One value per layer: `value` on the last layer of each period, `other` elsewhere."""
    return per_layer(lambda layer: value if layer % period == period - 1 else other, layers)


def window_pattern(period: int, layers: int = LAYERS) -> Keys:
    """Sliding windows on all layers but the last of each period, said layer by layer."""
    return {**SLIDING, "attention.sliding_window_pattern": every(period, False, True, layers)}


def attention_every(period: int) -> Keys:
    """Attention on the last layer of each period; layers without heads for keys are recurrent."""
    return {"attention.head_count_kv": every(period, 2, 0)}
