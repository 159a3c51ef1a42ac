"""Recipes in llama.cpp's terms: what is refused by its name, and that every setting reaches the library."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

from shard_engine import Engine, Output, Recipe, ShardEngineError, Status

PROMPT = [1, 264, 270, 262, 99, 290, 281, 264, 301, 266, 278, 295]
SMALL = Recipe(n_ctx=256, n_batch=64, n_ubatch=64, n_threads=1)

BAD_FIELDS: list[tuple[str, object, Status]] = [
    ("prefill_chunk", 65, Status.ARGUMENT),
    ("main_gpu", -1, Status.ARGUMENT),
    ("main_gpu", 16, Status.ARGUMENT),
    ("split_mode", "tensor", Status.UNSUPPORTED),
    ("boundary", "f64", Status.UNSUPPORTED),
    ("rope_scaling", "ntk", Status.UNSUPPORTED),
    ("rope_freq_base", 0.5, Status.ARGUMENT),
    ("rope_freq_base", math.nan, Status.ARGUMENT),
    ("rope_freq_scale", -1.0, Status.ARGUMENT),
    ("rope_freq_scale", math.inf, Status.ARGUMENT),
    ("yarn_ext_factor", -0.5, Status.ARGUMENT),
    ("yarn_attn_factor", math.nan, Status.ARGUMENT),
    ("yarn_beta_fast", 2e6, Status.ARGUMENT),
    ("yarn_beta_slow", -2.0, Status.ARGUMENT),
    ("yarn_orig_ctx", 2**31, Status.ARGUMENT),
]


def refusal(model: Path, **options: Any) -> ShardEngineError:
    """The error of an open that must fail."""
    with pytest.raises(ShardEngineError) as caught:
        Engine(model, **options)
    return caught.value


@pytest.mark.parametrize("kind", ["llama", "fake"])
@pytest.mark.parametrize(("field", "value", "status"), BAD_FIELDS, ids=lambda value: str(value))
def test_field_out_of_range_is_refused(
    build_toy: Callable[[str], Path], kind: str, field: str, value: object, status: Status
) -> None:
    """Both engines refuse a setting that cannot be honoured, by its name and with its value."""
    model = build_toy("llama-f32-untied") if kind == "llama" else Path("fake:")
    settings: dict[str, Any] = {field: value}
    error = refusal(model, engine=kind, recipe=replace(SMALL, **settings))
    assert error.status == status
    assert error.fields["field"] == f"recipe.{field}"
    assert error.fields["actual"] == (f"{value:.9g}" if isinstance(value, float) else str(value))


def test_cells_beyond_the_library_are_refused(build_toy: Callable[[str], Path]) -> None:
    """Cells of their own for many sessions can be more than llama.cpp can number."""
    error = refusal(
        build_toy("llama-f32-untied"),
        recipe=replace(SMALL, n_ctx=2**30, kv_unified=False),
        max_sessions=3,
    )
    assert error.status == Status.ARGUMENT
    assert error.fields == {"field": "recipe.n_ctx", "actual": str(2**30)}


@pytest.mark.skipif(llama_cpp.llama_supports_gpu_offload(), reason="this llama.cpp finds a GPU")
def test_layers_for_a_gpu_that_is_not_there_are_refused(build_toy: Callable[[str], Path]) -> None:
    """Offload without a device would compute elsewhere than the recipe says."""
    error = refusal(build_toy("llama-f32-untied"), recipe=replace(SMALL, n_gpu_layers=99))
    assert error.status == Status.UNSUPPORTED
    assert error.fields == {"field": "recipe.n_gpu_layers", "actual": "99"}


def test_devices_do_not_matter_without_offload(build_toy: Callable[[str], Path]) -> None:
    """Where no layer is offloaded, the other device settings are described and change nothing."""
    model = build_toy("llama-f32-untied")
    recipe = replace(SMALL, main_gpu=3, split_mode="none")
    with Engine(model, recipe=recipe) as engine:
        assert engine.describe().recipe.main_gpu == 3
    assert logits(model, recipe) == logits(model, SMALL)


def logits(model: Path, recipe: Recipe) -> bytes:
    """Of the last row of a prompt."""
    with Engine(model, recipe=recipe) as engine:
        rows = engine.forward(engine.session_open(), 0, tokens=PROMPT, output=Output.LOGITS).rows
        assert rows is not None
        return rows.data


ROPE: list[dict[str, Any]] = [
    {"rope_freq_base": 500.0},
    {"rope_freq_scale": 0.5},
    {"rope_scaling": "yarn", "rope_freq_scale": 0.25, "yarn_orig_ctx": 8},
    {"rope_scaling": "yarn", "rope_freq_scale": 0.25, "yarn_orig_ctx": 64},
    {"rope_scaling": "yarn", "rope_freq_scale": 0.25, "yarn_orig_ctx": 64, "yarn_ext_factor": 0.5},
    {"rope_scaling": "yarn", "rope_freq_scale": 0.25, "yarn_orig_ctx": 64, "yarn_beta_fast": 4.0},
    {"rope_scaling": "yarn", "rope_freq_scale": 0.25, "yarn_orig_ctx": 64, "yarn_beta_slow": 2.0},
    {"rope_freq_scale": 0.5, "yarn_attn_factor": 1.5},
]


def test_rope_overrides_reach_the_library(build_toy: Callable[[str], Path]) -> None:
    """Every override changes the logits, each in its own way; naming what the model says changes nothing."""
    model = build_toy("llama-f32-untied")
    plain = logits(model, SMALL)
    seen = [logits(model, replace(SMALL, **settings)) for settings in ROPE]
    assert len({plain, *seen}) == 1 + len(ROPE)
    assert logits(model, replace(SMALL, rope_freq_base=10000.0, rope_freq_scale=1.0)) == plain
    assert logits(model, replace(SMALL, rope_scaling="none", rope_freq_scale=0.5)) == plain


def test_description_names_what_was_settled(build_toy: Callable[[str], Path]) -> None:
    """Settings that were left open are settled, and all others come back as they were given."""
    given = replace(SMALL, n_threads=0, prefill_chunk=0, kv_unified=False, rope_freq_base=12345.678)
    with Engine(build_toy("llama-f32-untied"), recipe=given, max_sessions=3) as engine:
        described = engine.describe()
    settled = described.recipe
    assert settled.n_threads > 0
    assert settled.prefill_chunk == 64
    assert settled.rope_freq_base == pytest.approx(12345.678, rel=1e-7)
    assert replace(settled, n_threads=0, prefill_chunk=0, rope_freq_base=given.rope_freq_base) == given
    assert (described.session_cells, described.kv_cells) == (256, 768)


NUMA = """
import sys
from shard_engine import Engine, Recipe, ShardEngineError

for numa in sys.argv[2:]:
    try:
        Engine(sys.argv[1], recipe=Recipe(n_ctx=256, n_batch=64, n_ubatch=64), numa=numa).close()
        print("loaded")
    except ShardEngineError as error:
        print(error.status.name, error.fields)
"""


def test_numa_holds_for_the_whole_process(build_toy: Callable[[str], Path]) -> None:
    """A strategy may be named again, and left out later, but not changed; an unknown one is refused."""
    strategies = ["disabled", "distribute", "distribute", "disabled", "isolate", "interleave"]
    done = subprocess.run(
        [sys.executable, "-c", NUMA, str(build_toy("llama-f32-untied")), *strategies],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "loaded",
        "loaded",
        "loaded",
        "loaded",
        "UNSUPPORTED {'field': 'numa', 'actual': 'isolate'}",
        "UNSUPPORTED {'field': 'numa', 'actual': 'interleave'}",
    ]
