"""What a shard would take, as known before it is loaded, and what is there afterwards."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import toy
from outlines import estimate_by_file
from shard_engine import (
    Engine,
    Memory,
    OpenOptions,
    Recipe,
    ShardEngineError,
    Status,
    estimate,
    inspect,
    slice_artifact,
)

PROMISE = 0.10
STAGES = {"whole": (0, 3), "first": (0, 1), "middle": (1, 2), "last": (2, 3)}
"""Ranges in thirds of the layers."""

RECIPES = {
    "small": Recipe(n_ctx=256, n_batch=32, n_ubatch=32),
    "large": Recipe(n_ctx=4096, n_batch=512, n_ubatch=256),
    "own-cells": Recipe(n_ctx=1024, n_batch=128, n_ubatch=64, kv_unified=False),
    "quantised": Recipe(n_ctx=2048, n_batch=128, n_ubatch=128, type_k="q8_0", type_v="q4_0"),
    "no-flash": Recipe(n_ctx=1024, n_batch=128, n_ubatch=128, flash_attn=False, repack=False),
    "f32": Recipe(n_ctx=512, n_batch=64, n_ubatch=64, type_k="f32", type_v="f32", boundary="f16"),
}


def total(memory: Memory) -> int:
    """All bytes."""
    return memory.weights_bytes + memory.kv_bytes + memory.compute_bytes


def layers_of(model: Path, stage: str) -> tuple[int, int]:
    """The layers of a stage of this model."""
    n_layer = inspect(model).n_layer
    start, end = STAGES[stage]
    return start * n_layer // 3, end * n_layer // 3


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", ["llama-f32-untied", "llama-q4_k-tied", "llama-moe4-q4_k", "llama-split"])
@pytest.mark.parametrize("name", RECIPES)
def test_estimate_agrees_with_what_is_loaded(
    build_toy: Callable[[str], Path], cache_dir: Path, kind: str, stage: str, name: str
) -> None:
    """Weights, KV and compute are each within a tenth of what the loaded shard describes."""
    model = build_toy(kind)
    layers = layers_of(model, stage)
    options = OpenOptions(layers=layers, recipe=RECIPES[name], cache_dir=cache_dir, max_sessions=3)
    expected = estimate(model, **options)
    with Engine(model, **options) as engine:
        memory = engine.describe().memory
    assert expected.weights_bytes == pytest.approx(memory.weights_bytes, rel=PROMISE)
    assert expected.kv_bytes == pytest.approx(memory.kv_bytes, rel=PROMISE)
    assert expected.compute_bytes == pytest.approx(memory.compute_bytes, rel=PROMISE)


@pytest.mark.parametrize("kind", toy.KINDS)
def test_outline_of_a_model_gives_what_its_file_gives(build_toy: Callable[[str], Path], kind: str) -> None:
    """What the library reads for an estimate is the model but for what does not count, to the byte."""
    model = build_toy(kind)
    options = OpenOptions(recipe=RECIPES["no-flash"], max_sessions=3)
    assert estimate(model, **options) == estimate_by_file(model, **options)


@pytest.mark.parametrize("kind", ["llama-f32-untied", "llama-q4_k-tied", "llama-split"])
def test_outline_of_a_slice_gives_what_its_file_gives(
    build_toy: Callable[[str], Path], tmp_path: Path, kind: str
) -> None:
    """Also of the last layers alone, and of all of them."""
    model = build_toy(kind)
    n_layer = inspect(model).n_layer
    for start in (0, n_layer - 1):
        path = tmp_path / f"{start}.gguf"
        slice_artifact(model, (start, n_layer), path)
        assert estimate(path) == estimate_by_file(path)


def test_each_session_has_cells_of_its_own_only_where_asked(build_toy: Callable[[str], Path]) -> None:
    """Without a shared KV every session's cells are counted."""
    model = build_toy("llama-f32-untied")
    shared = estimate(model, recipe=Recipe(n_ctx=512), max_sessions=4)
    own = estimate(model, recipe=Recipe(n_ctx=512, kv_unified=False), max_sessions=4)
    assert own.kv_bytes == pytest.approx(4 * shared.kv_bytes, rel=0.02)


def test_copy_of_a_repacked_head_is_counted(build_toy: Callable[[str], Path]) -> None:
    """A tied head that the library repacks is in memory twice, and only then."""
    model = build_toy("llama-q4_k-repacked-head")
    head_bytes = inspect(model).embedding_bytes
    for repack in (True, False):
        recipe = Recipe(n_ctx=256, n_batch=64, n_ubatch=64, repack=repack)
        expected = estimate(model, recipe=recipe).weights_bytes
        with Engine(model, recipe=recipe) as engine:
            described = engine.describe()
        assert expected == described.memory.weights_bytes
        assert expected - described.owned_bytes in (0, head_bytes if repack else 0)


@pytest.mark.parametrize("kv_unified", [True, False])
def test_estimate_of_a_huge_context_takes_no_memory(
    build_toy: Callable[[str], Path], kv_unified: bool
) -> None:
    """The figures of contexts that no machine could hold follow from those of smaller ones."""
    model = build_toy("llama-f32-untied")
    base, factor = 2**18, 2**8
    recipe = Recipe(n_ctx=base, n_batch=32, n_ubatch=32, kv_unified=kv_unified)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    small = estimate(model, recipe=recipe, max_sessions=4)
    huge = estimate(model, recipe=replace(recipe, n_ctx=base * factor), max_sessions=4)
    assert huge.weights_bytes == small.weights_bytes
    assert huge.kv_bytes == pytest.approx(small.kv_bytes * factor, rel=0.01)
    assert small.compute_bytes < huge.compute_bytes <= small.compute_bytes * factor
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 512 * 1024


def test_shard_that_does_not_fit_is_refused(build_toy: Callable[[str], Path]) -> None:
    """One byte too few is refused with all figures; enough is not."""
    model = build_toy("llama-q4_k-tied")
    recipe = Recipe(n_ctx=1024, n_batch=64, n_ubatch=64)
    needed = estimate(model, recipe=recipe)
    with pytest.raises(ShardEngineError) as caught:
        Engine(model, recipe=recipe, memory_available=total(needed) - 1)
    assert caught.value.status == Status.MEMORY
    assert caught.value.fields == {
        "needed_bytes": str(total(needed)),
        "available_bytes": str(total(needed) - 1),
        "weights_bytes": str(needed.weights_bytes),
        "kv_bytes": str(needed.kv_bytes),
        "compute_bytes": str(needed.compute_bytes),
    }
    with Engine(model, recipe=recipe, memory_available=total(needed)) as engine:
        assert engine.describe().memory.kv_bytes > 0


def test_estimate_refuses_what_cannot_be_loaded(build_toy: Callable[[str], Path], tmp_path: Path) -> None:
    """A recipe, a range or a file that `open` refuses is refused here as well."""
    model = build_toy("llama-f32-untied")
    refused: list[tuple[Status, Path, OpenOptions]] = [
        (Status.UNSUPPORTED, model, {"recipe": Recipe(n_ctx=100)}),
        (Status.RANGE, model, {"layers": (0, 99)}),
        (Status.NOT_FOUND, tmp_path / "none.gguf", {}),
    ]
    for status, path, options in refused:
        with pytest.raises(ShardEngineError) as caught:
            estimate(path, **options)
        assert caught.value.status == status


def test_file_that_lacks_a_tensor_is_malformed_however_it_is_asked(
    build_toy: Callable[[str], Path], tmp_path: Path
) -> None:
    """What llama.cpp cannot load has one status, whether the memory is compared first or not."""
    path = tmp_path / "odd.gguf"
    whole = build_toy("llama-f32-untied").read_bytes()
    path.write_bytes(whole.replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_op.weight", 1))
    for call in (
        lambda: estimate(path),
        lambda: Engine(path, memory_available=1 << 40),
        lambda: Engine(path),
    ):
        with pytest.raises(ShardEngineError, match=r"blk\.1\.ffn_up\.weight") as caught:
            call()
        assert caught.value.status == Status.MALFORMED


def test_estimate_writes_the_shard_file_once(build_toy: Callable[[str], Path], cache_dir: Path) -> None:
    """The shard file that an estimate wrote is the one that is then loaded."""
    model = build_toy("llama-f32-untied")
    estimate(model, layers=(0, 2), cache_dir=cache_dir)
    (path,) = (cache_dir / "shards").glob("*.gguf")
    written = path.stat().st_mtime_ns
    with Engine(model, layers=(0, 2), cache_dir=cache_dir) as engine:
        assert engine.describe().owned_layers == 2
    assert path.stat().st_mtime_ns == written
