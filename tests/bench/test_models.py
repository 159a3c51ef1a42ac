"""The random models: the same bytes everywhere, and what stock llama.cpp can load and draw from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Type

from kit import models
from kit.models import SHAPES, Model, Shape, random_llama
from kit.program import sha256_of
from reference import Reference, Settings
from toy.model import build

SHA256 = {
    Type.Q4_0: "1b2eab8d9ca381fced95ef1c9f14b1cb6f39b28cc01954f0fc12d780b4cc697f",
    Type.Q8_0: "61e2cfe591694339119cb33fa5bf7b21b4f57d813e5ce59cde4709209b56f8f7",
}
"""Of the models below. Others mean that REVISION has to go up."""


def shape(weights: Type) -> Shape:
    """Small enough for a test."""
    return Shape(
        name=f"small {weights.name}",
        weights=weights,
        n_embd=128,
        n_layer=4,
        n_ff=256,
        n_head=2,
        n_head_kv=1,
    )


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("llama-f32-tied", tmp_path_factory.mktemp("vocabulary"))


@pytest.mark.parametrize("weights", SHA256)
def test_a_model_is_the_same_everywhere(weights: Type, vocabulary: Path, tmp_path: Path) -> None:
    assert random_llama(shape(weights), vocabulary, tmp_path).sha256 == SHA256[weights]


@pytest.mark.parametrize("weights", SHA256)
def test_stock_llama_cpp_draws_from_it(weights: Type, vocabulary: Path, tmp_path: Path) -> None:
    model = random_llama(shape(weights), vocabulary, tmp_path)
    with Reference(model.path, Settings(threads=1, n_ctx=256)) as reference:
        drawn = reference.greedy(reference.tokenize("the thing"), 32).tokens
        text = reference.detokenize(drawn)
    assert len(set(drawn)) > 1, "a model that only repeats itself would not show an error"
    assert text.isascii()


def test_a_written_model_is_kept_and_a_damaged_one_is_written_again(vocabulary: Path, tmp_path: Path) -> None:
    def written() -> tuple[Model, int]:
        model = random_llama(shape(Type.Q4_0), vocabulary, tmp_path)
        return model, model.path.stat().st_mtime_ns

    first, at = written()
    assert written() == (first, at)
    first.path.write_bytes(b"damaged")
    again, _ = written()
    assert again == first
    assert list(tmp_path.glob("*.unfinished")) == []


def test_another_revision_is_written_again(
    vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = random_llama(shape(Type.Q4_0), vocabulary, tmp_path)
    random_llama(replace(shape(Type.Q4_0), seed=2), vocabulary, tmp_path)
    assert sha256_of(one.path) != one.sha256
    monkeypatch.setattr(models, "REVISION", models.REVISION + 1)
    assert random_llama(shape(Type.Q4_0), vocabulary, tmp_path) == one


def test_the_tiny_ones_have_the_recipe_of_the_large_ones() -> None:
    for large, tiny in SHAPES.values():
        assert large.weights == tiny.weights
        assert tiny.n_embd < large.n_embd
        assert tiny.n_layer >= 4, "three stages need three layers, and the cut wants a choice"
