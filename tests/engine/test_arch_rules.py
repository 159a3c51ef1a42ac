"""What an architecture's rule does to a shard, and what it refuses before llama.cpp sees it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader

from engine.shell import N_EMBD, N_VOCAB, Keys, keys_of, write_shell
from shard_engine import Engine, ShardEngineError, Status, inspect, slice_artifact

EVERY_THIRD = [True, True, False] * 4


def cut(model: Path, layers: tuple[int, int]) -> Path:
    """The file of a shard. Raises ShardEngineError where the rule refuses it."""
    path = model.with_name(f"{layers[0]}-{layers[1]}.gguf")
    slice_artifact(model, layers, path)
    return path


def refusal(model: Path, layers: tuple[int, int]) -> str:
    """Why a range cannot be cut; SHARD_ERR_UNSUPPORTED it must be."""
    with pytest.raises(ShardEngineError) as caught:
        cut(model, layers)
    assert caught.value.status == Status.UNSUPPORTED
    return caught.value.message


# ---- metadata ------------------------------------------------------------------------------------


def test_shard_counts_from_its_own_layers(tmp_path: Path) -> None:
    """What counts from the first layer is lowered, and layers that predict further tokens are left out."""
    model = write_shell(
        tmp_path, "glm4moe", {"block_count": 13, "nextn_predict_layers": 1, "leading_dense_block_count": 5}
    )
    assert inspect(model).n_layer == 12
    middle, last = cut(model, (3, 7)), cut(model, (7, 12))
    assert keys_of(middle)["block_count"] == 4
    assert keys_of(middle)["leading_dense_block_count"] == 2
    assert keys_of(last)["leading_dense_block_count"] == 0
    assert keys_of(last)["nextn_predict_layers"] == 0
    layers = [tensor for tensor in GGUFReader(last).tensors if tensor.name.startswith("blk.")]
    assert [(tensor.name, tensor.data[0]) for tensor in sorted(layers, key=lambda found: found.data[0])] == [
        (f"blk.{layer - 7}.attn_norm.weight", layer) for layer in range(7, 12)
    ]


def test_lists_are_cut_with_the_layers(tmp_path: Path) -> None:
    """A list with one value per layer is cut, of all layers in the file or of those that are served."""
    model = write_shell(
        tmp_path,
        "mimo2",
        {
            "block_count": 13,
            "nextn_predict_layers": 1,
            "attention.sliding_window": 16,
            "attention.sliding_window_pattern": EVERY_THIRD,
            "attention.head_count_kv": [*range(1, 14)],
        },
    )
    found = keys_of(cut(model, (4, 10)))
    assert found["attention.sliding_window_pattern"] == EVERY_THIRD[4:10]
    assert found["attention.head_count_kv"] == [5, 6, 7, 8, 9, 10]


def test_sections_of_rope_are_no_list_of_layers(tmp_path: Path) -> None:
    """M-RoPE's four sections stay together, also in a model of four layers."""
    model = write_shell(tmp_path, "qwen2vl", {"block_count": 4, "rope.dimension_sections": [2, 3, 3, 0]})
    assert keys_of(cut(model, (1, 3)))["rope.dimension_sections"] == [2, 3, 3, 0]


@pytest.mark.parametrize(
    ("architecture", "given", "first", "later"),
    [
        ("granite", 12.0, 12.0, 1.0),
        ("granite", None, None, None),
        ("minicpm", None, None, 1.0),
        ("llama", 3.0, 3.0, 3.0),
    ],
)
def test_embedding_is_scaled_once(
    architecture: str, given: float | None, first: float | None, later: float | None, tmp_path: Path
) -> None:
    """Rows are scaled by the first stage alone, whether the key is there or the library has a default."""
    keys: Keys = {} if given is None else {"embedding_scale": given}
    model = write_shell(tmp_path, architecture, keys)
    assert keys_of(cut(model, (0, 6))).get("embedding_scale") == first
    assert keys_of(cut(model, (6, 12))).get("embedding_scale") == later


def test_what_the_library_works_out_from_the_number_of_layers_is_written(tmp_path: Path) -> None:
    """MiniCPM's residual scale and DeepSeek-V2-Lite's queries are those of the whole model."""
    scale = keys_of(cut(write_shell(tmp_path, "minicpm"), (0, 6)))["residual_scale"]
    assert scale == pytest.approx(1.4 / math.sqrt(12), rel=1e-6)
    lite = write_shell(tmp_path, "deepseek2", {"block_count": 27, "attention.q_lora_rank": 24})
    assert keys_of(cut(lite, (0, 13)))["attention.q_lora_rank"] == 0
    assert keys_of(cut(lite, (13, 27)))["expert_gating_func"] == 1


# ---- the ends ------------------------------------------------------------------------------------


def test_head_takes_the_place_of_the_embedding(tmp_path: Path) -> None:
    """Where the library ties a missing head to the embedding, the last shard holds the head alone."""
    tensors = {
        tensor.name: tensor for tensor in GGUFReader(cut(write_shell(tmp_path, "llama"), (6, 12))).tensors
    }
    assert "output.weight" not in tensors
    assert (tensors["token_embd.weight"].data == 2).all()


def test_head_that_is_not_tied_stands_beside_a_hole(tmp_path: Path) -> None:
    """Where the library wants both, the last shard has the head and an embedding that takes no room."""
    path = cut(write_shell(tmp_path, "qwen"), (6, 12))
    tensors = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    embedding = tensors["token_embd.weight"]
    assert (tensors["output.weight"].data == 2).all()
    assert tuple(embedding.shape) == (N_EMBD, N_VOCAB)
    assert embedding.tensor_type == GGMLQuantizationType.Q4_0
    assert not np.any(embedding.data)
    assert path.stat().st_blocks * 512 < path.stat().st_size


def test_shard_without_a_head_has_a_vocabulary_of_one(tmp_path: Path) -> None:
    """Embedding and head of a shard that is not the last are one row each, a tied head none."""
    model = write_shell(tmp_path, "qwen", {"vocab_size": N_VOCAB})
    path = cut(model, (3, 6))
    shapes = {tensor.name: tuple(tensor.shape) for tensor in GGUFReader(path).tensors}
    assert shapes["token_embd.weight"] == shapes["output.weight"] == (N_EMBD,)
    assert keys_of(path)["vocab_size"] == 1
    tied = cut(write_shell(tmp_path, "llama", tied=True), (3, 7))
    assert "output.weight" not in {tensor.name for tensor in GGUFReader(tied).tensors}


# ---- where a model may be cut --------------------------------------------------------------------


def test_cuts_leave_a_whole_period(tmp_path: Path) -> None:
    """Gemma 3 is cut at multiples of six, and not so near its end that less than a period is left."""
    model = write_shell(tmp_path, "gemma3", {"block_count": 26, "attention.sliding_window": 16})
    assert inspect(model).cut_period == 6
    assert "multiples of 6" in refusal(model, (0, 5))
    assert "leaves at least 6 layers" in refusal(model, (24, 26))
    cut(model, (18, 26))


def test_windows_without_a_width_do_not_limit_cuts(tmp_path: Path) -> None:
    """Gemma 3 without a sliding window has one kind of layer, and is cut anywhere."""
    assert inspect(write_shell(tmp_path, "gemma3")).cut_period == 1


@pytest.mark.parametrize(
    ("architecture", "keys", "period"),
    [
        ("llama4", {"interleave_moe_layer_step": 1}, 4),
        ("llama4", {"interleave_moe_layer_step": 3}, 12),
        ("ernie4_5-moe", {"interleave_moe_layer_step": 2}, 2),
        ("smollm3", {}, 4),
        ("qwen3next", {}, 4),
        ("qwen3next", {"attention.recurrent_layers": EVERY_THIRD}, 3),
        ("gpt-oss", {"attention.sliding_window_pattern": [1] * 12}, 1),
        ("gpt-oss", {"attention.sliding_window_pattern": EVERY_THIRD}, 2),
        ("jamba", {"attention.head_count_kv": [0, 2] * 6, "ssm.inner_size": 128}, 2),
        ("nemotron_h", {"attention.head_count_kv": [0, 2, 0] * 4, "feed_forward_length": [0, 0, 96] * 4}, 3),
        ("deci", {"attention.head_count_kv": [0, 0, 2, 2] * 3}, 3),
        ("minimax-m3", {"leading_dense_block_count": 2, "attention.indexer.block_size": 4}, 3),
        ("smallthinker", {"block_count": 16, "attention.sliding_window": 16, "expert_count": 4}, 8),
    ],
)
def test_period_follows_from_the_metadata(architecture: str, keys: Keys, period: int, tmp_path: Path) -> None:
    """Steps, intervals and lists decide where cuts keep every layer what it is."""
    experts = {"expert_used_count": 2, "expert_gating_func": 1} if "expert_count" in keys else {}
    assert inspect(write_shell(tmp_path, architecture, {**experts, **keys})).cut_period == period


def test_shard_must_not_look_like_a_size_of_its_own(tmp_path: Path) -> None:
    """DeepSeek-V2 with 26 layers is a Lite to llama.cpp, so a shard of a larger one must not have 26."""
    model = write_shell(tmp_path, "deepseek2", {"block_count": 52})
    assert "takes 26 layers of deepseek2 for a size" in refusal(model, (0, 26))
    cut(model, (0, 25))


def test_shard_starts_with_an_index_of_its_own(tmp_path: Path) -> None:
    """GLM with shared indexes is cut before a layer that makes one."""
    kinds = [1, 1, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0]
    model = write_shell(tmp_path, "glm-dsa", {"context_length": 1 << 20, "attention.indexer.types": kinds})
    assert "layer 7 reuses the index" in refusal(model, (7, 12))
    assert keys_of(cut(model, (6, 12)))["attention.indexer.types"] == kinds[6:]
    unlisted = inspect(write_shell(tmp_path, "glm-dsa", {"context_length": 1 << 20}))
    assert (unlisted.supported, unlisted.cut_period) == (False, 0)


def test_shard_starts_with_as_many_heads_as_the_model(tmp_path: Path) -> None:
    """The size of a head comes from the first layer, unless the model says it."""
    heads = [4, 2] * 6
    model = write_shell(tmp_path, "openelm", {"attention.head_count": heads})
    assert "layer 3 has another number of attention heads" in refusal(model, (3, 12))
    cut(model, (4, 12))
    sized = write_shell(
        tmp_path,
        "openelm",
        {
            "attention.head_count": heads,
            "attention.key_length": 16,
            "attention.value_length": 16,
            "rope.dimension_count": 16,
        },
    )
    cut(sized, (3, 12))


def test_names_of_tensors_in_the_metadata_forbid_cuts(tmp_path: Path) -> None:
    """Names that hold a layer would name another one in a shard."""
    found = inspect(write_shell(tmp_path, "llama", general="general.tensor_extra.name"))
    assert (found.supported, found.cut_period) == (False, 0)
    assert found.reason.endswith("serve it whole")


# ---- what is refused before the library sees it --------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "keys", "reason"),
    [
        ("gpt-oss", {"attention.sliding_window_pattern": [0] * 12}, "all of its layers are of one kind"),
        ("kimi-linear", {"attention.head_count_kv": [0] * 12}, "all of its layers are of one kind"),
        ("qwen3", {"attention.key_length": 16, "attention.value_length": 8}, "keys of 16 values"),
        ("qwen3", {"rope.dimension_count": 8}, "8 rotated values in heads of 16"),
        ("llama", {"nextn_predict_layers": 12}, "leaves none to compute"),
        (
            "llama",
            {"expert_count": 6, "expert_used_count": 2, "expert_group_count": 4},
            "6 experts in 4 groups",
        ),
        ("mamba", {"ssm.state_size": 0}, "the key mamba.ssm.state_size is zero"),
        ("rwkv6", {"token_shift_count": 1}, "rwkv6.token_shift_count is 1"),
        ("minimax-m3", {"attention.indexer.block_size": 0}, "only with 1 or more"),
        ("rwkv7", {"wkv.head_size": 16}, "only with multiples of 64"),
        ("mamba2", {"ssm.inner_size": 128, "ssm.time_step_rank": 7}, "cannot be divided into 7 ranks"),
        ("jamba", {"attention.head_count_kv": [0, 2] * 6, "ssm.inner_size": 96}, "only with twice its width"),
        ("bailingmoe3", {"kda.gate_lower_bound": 1.0}, "which must be below 0"),
        ("llama", {"attention.layer_norm_rms_epsilon": -1.0}, "which must be 0 or more"),
        ("gpt2", {"attention.layer_norm_epsilon": math.nan}, "which must be 0 or more"),
        ("nanbeige", {"num_loops": 60}, "12 layers that run 60 times"),
        ("hrm_text", {"hrm.layers_per_stack": 5}, "its cycles do not make up its 12 layers"),
        ("plamo2", {"ssm.group_count": 1}, "without groups only"),
        ("chameleon", {}, "315 tokens; llama.cpp runs chameleon with 8196 or more"),
        ("bert", {}, "it is an encoder"),
    ],
)
def test_what_would_abort_the_process_is_refused(
    architecture: str, keys: Keys, reason: str, tmp_path: Path
) -> None:
    """Such a model is neither cut nor served whole, and the reason says what is wrong with it."""
    lists = {} if architecture != "plamo2" else {"attention.head_count_kv": [0, 2] * 6}
    model = write_shell(tmp_path, architecture, {**lists, **keys})
    found = inspect(model)
    assert not found.supported
    assert reason in found.reason
    assert "serve it whole" not in found.reason
    with pytest.raises(ShardEngineError, match="cannot be served") as caught:
        Engine(model)
    assert caught.value.status == Status.UNSUPPORTED
