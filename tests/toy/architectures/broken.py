"""Models over which llama.cpp ends its process, or computes with memory that is not the model's.

Each is a toy that runs but for some of its hyper-parameters, or for tensors that it should not have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from toy.architectures.catalogue import VARIANTS
from toy.architectures.keys import per_layer
from toy.architectures.variant import Keys, Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A model with the tensors of one variant and other keys."""

    name: str
    base: Variant
    keys: Keys

    @property
    def variant(self) -> Variant:
        """What the file says."""
        return replace(self.base, keys={**self.base.keys, **self.keys})


def _broken(base: str, detail: str, keys: Keys) -> Broken:
    return Broken(name=f"{base}-{detail}", base=VARIANTS[base], keys=keys)


_LIST = (
    _broken("llama", "no-layers", {"block_count": 0}),
    _broken("llama", "no-heads", {"attention.head_count": 0}),
    _broken("llama", "unknown-scaling", {"rope.scaling.type": "none of these"}),
    _broken("llama-experts", "uses-more-than-it-has", {"expert_used_count": 5}),
    _broken("glm4moe", "group-for-each-expert", {"expert_group_count": 4}),
    _broken("glm4moe-further", "further-layers-only", {"nextn_predict_layers": 13}),
    _broken("ernie4_5-moe", "no-step", {"interleave_moe_layer_step": 0}),
    _broken("smallthinker", "no-gating", {"expert_gating_func": 0}),
    _broken("gemma3", "no-window", {"attention.sliding_window_pattern": per_layer(lambda _: False)}),
    _broken("jamba", "no-state", {"attention.head_count_kv": 2}),
    _broken("jamba", "other-expansion", {"ssm.inner_size": 96}),
    _broken("mamba2", "no-groups", {"ssm.group_count": 0}),
    _broken("mamba2", "uneven-ranks", {"ssm.time_step_rank": 7}),
    _broken("qwen3next", "no-interval", {"full_attention_interval": 0}),
    _broken("rwkv6", "no-head", {"wkv.head_size": 0}),
    _broken("rwkv6", "small-heads", {"wkv.head_size": 16}),
    _broken("rwkv6qwen2", "two-shifts", {"token_shift_count": 2}),
    _broken("arwkv7", "two-shifts", {"token_shift_count": 2}),
    Broken(
        name="rwkv6qwen2-first", base=replace(VARIANTS["rwkv6qwen2"], detail="first", without=()), keys={}
    ),
    _broken("llama", "negative-epsilon", {"attention.layer_norm_rms_epsilon": -1.0}),
    _broken("bailingmoe3", "rising-gate", {"kda.gate_lower_bound": 1.0}),
    _broken("deepseek32", "short-index", {"attention.indexer.key_length": 16}),
    _broken("minimax-m3", "no-block", {"attention.indexer.block_size": 0}),
    _broken("nanbeige", "no-loops", {"num_loops": 0}),
    _broken("nanbeige", "many-loops", {"num_loops": 60}),
    _broken("hrm_text", "other-cycles", {"hrm.layers_per_stack": 5}),
    Broken(name="chameleon-few-tokens", base=replace(VARIANTS["chameleon"], detail="few", tokens=0), keys={}),
)

BROKEN = {one.name: one for one in _LIST}
