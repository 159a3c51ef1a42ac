"""What cannot be opened, and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from conformance.shard import SMALL, ShardError, Subject
from shard_engine import Recipe


def refusal(subject: Subject, **changes: object) -> ShardError:
    """The error of an open that must fail."""
    with pytest.raises(ShardError) as caught:
        subject.open(subject.options(**changes)).close()
    assert "\n" not in caught.value.message
    return caught.value


def test_open_missing_file_is_named(subject: Subject, tmp_path: Path) -> None:
    """A path that does not exist is `not_found` and named."""
    path = str(tmp_path / "nowhere.gguf")
    error = refusal(subject, model=path)
    assert (error.code, error.fields["path"]) == ("not_found", path)
    assert path in error.message


def test_open_file_of_another_kind_is_malformed(subject: Subject, tmp_path: Path) -> None:
    """A file that is not an artifact is `malformed` and named."""
    path = tmp_path / "text.gguf"
    path.write_text("this is no model\n" * 100)
    error = refusal(subject, model=str(path))
    assert (error.code, error.fields["path"]) == ("malformed", str(path))


@pytest.mark.parametrize("layers", [(0, 7), (6, 7), (3, 3), (4, 2), (6, 0)], ids=str)
def test_open_range_outside_the_model_is_named(subject: Subject, layers: tuple[int, int]) -> None:
    """An empty, reversed or too long range is `range`, with the model's layers."""
    error = refusal(subject, layers=layers)
    assert error.code == "range"
    assert error.fields["layer_start"] == str(layers[0])
    assert error.fields["layer_end"] == str(layers[1] or 6)
    assert error.fields["n_layer"] == "6"


@pytest.mark.parametrize(("n_ctx", "allowed"), [(0, 256), (100, 256), (257, 512), (4095, 4096)])
def test_open_context_that_is_not_a_multiple_names_the_next(
    subject: Subject, n_ctx: int, allowed: int
) -> None:
    """n_ctx must be a multiple of 256; the refusal names the next allowed value."""
    error = refusal(subject, recipe=Recipe(n_ctx=n_ctx, n_batch=32, n_ubatch=32))
    assert error.code == "unsupported"
    assert error.fields["field"] == "recipe.n_ctx"
    assert str(allowed) in error.message


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(n_ctx=256, n_batch=32, n_ubatch=64),
        Recipe(n_ctx=256, n_batch=32, n_ubatch=0),
        Recipe(n_ctx=256, n_batch=0, n_ubatch=0),
        Recipe(n_ctx=256, n_batch=512, n_ubatch=32),
    ],
    ids=lambda recipe: f"{recipe.n_batch}/{recipe.n_ubatch}",
)
def test_open_batches_that_do_not_fit_are_refused(subject: Subject, recipe: Recipe) -> None:
    """1 <= n_ubatch <= n_batch <= n_ctx must hold."""
    error = refusal(subject, recipe=recipe)
    assert error.code == "argument"
    assert "batch" in error.message


@pytest.mark.parametrize(
    ("field", "recipe"),
    [
        ("type_k", Recipe(n_ctx=256, n_batch=32, n_ubatch=32, type_k="f17")),
        ("type_v", Recipe(n_ctx=256, n_batch=32, n_ubatch=32, type_v="")),
        ("type_v", Recipe(n_ctx=256, n_batch=32, n_ubatch=32, type_v="q8_0", flash_attn=False)),
        ("boundary", replace(SMALL, boundary="f64")),
        ("split_mode", replace(SMALL, split_mode="column")),
        ("rope_scaling", replace(SMALL, rope_scaling="cubic")),
    ],
    ids=["unknown K", "empty V", "quantised V without flash attention", "boundary", "split", "rope"],
)
def test_open_type_that_is_not_supported_is_named(subject: Subject, field: str, recipe: Recipe) -> None:
    """A dtype or method that cannot be honoured is refused by name, never replaced."""
    error = refusal(subject, recipe=recipe)
    assert error.code == "unsupported"
    assert error.fields["field"] == f"recipe.{field}"
    assert getattr(recipe, field) in error.message


@pytest.mark.parametrize(
    ("field", "actual", "allowed"),
    [
        ("prefill_chunk", 33, "0 to 32"),
        ("main_gpu", -1, "0 to 15"),
        ("rope_freq_base", -1.0, "or 0"),
        ("rope_freq_scale", float("inf"), "or 0"),
        ("yarn_ext_factor", -2.0, "or -1"),
        ("yarn_orig_ctx", 2**31, "0 is"),
    ],
)
def test_open_number_out_of_its_range_is_named(
    in_process_subject: Subject, field: str, actual: float, allowed: str
) -> None:
    """A number that no model can be run with is refused, with the values that are allowed."""
    error = refusal(in_process_subject, recipe=replace(SMALL, **{field: actual}))  # type: ignore[arg-type]
    assert (error.code, error.fields["field"]) == ("argument", f"recipe.{field}")
    assert float(error.fields["actual"]) == actual
    assert allowed in error.message


def test_open_more_cells_than_can_be_numbered_are_refused(subject: Subject) -> None:
    """Without kv_unified the cells of all sessions together must have numbers."""
    recipe = replace(SMALL, n_ctx=2**30, kv_unified=False)
    error = refusal(subject, recipe=recipe, max_sessions=4)
    assert (error.code, error.fields["field"]) == ("argument", "recipe.n_ctx")
    assert str(2**32) in error.message


def test_open_other_artifact_than_expected_is_refused(subject: Subject) -> None:
    """An artifact with another digest is `identity`, with both digests."""
    actual = subject.inspect(subject.model.path).artifact_sha256
    error = refusal(subject, artifact="0" * 64)
    assert error.code == "identity"
    assert error.fields == {"field": "artifact", "expected": "0" * 64, "actual": actual}


def test_open_with_the_expected_artifact_works(subject: Subject) -> None:
    """The right digest opens."""
    digest = subject.inspect(subject.model.path).artifact_sha256
    shard = subject.open(subject.options(artifact=digest))
    assert shard.description.artifact == digest
    shard.close()


def test_open_more_sessions_than_a_batch_can_name_is_refused(subject: Subject) -> None:
    """max_sessions is at most 256."""
    error = refusal(subject, max_sessions=257)
    assert error.code == "argument"
    assert "257" in error.message


def test_open_without_sessions_is_refused(in_process_subject: Subject) -> None:
    """max_sessions is at least 1. (The worker's protocol refuses 0 before an engine hears of it.)"""
    error = refusal(in_process_subject, max_sessions=0)
    assert error.code == "argument"


@pytest.mark.parametrize(
    ("model", "word"),
    [("fake:layers=0", "layers=0"), ("fake:depth=3", "depth=3"), ("fake:layers", "layers"), ("fake:,", "")],
)
def test_open_bad_fake_specification_names_the_word(fake_subject: Subject, model: str, word: str) -> None:
    """A word that is no part of a specification is named."""
    error = refusal(fake_subject, model=model)
    assert (error.code, error.fields["word"]) == ("argument", word)


def test_open_bad_fault_plan_names_the_word(fake_subject: Subject) -> None:
    """A word that is no fault is named; nothing is opened."""
    error = refusal(fake_subject, fault_plan="slow:1,explode@2")
    assert (error.code, error.fields["word"]) == ("argument", "explode@2")


def test_open_that_the_fault_plan_fails_is_a_backend_error(fake_subject: Subject) -> None:
    """`load-fail` fails the load with `backend`."""
    assert refusal(fake_subject, fault_plan="load-fail", recipe=SMALL).code == "backend"


def test_open_batch_smaller_than_the_sessions_is_refused(subject: Subject) -> None:
    """A step must have a row for each session, so fewer batch rows are an `argument`, named."""
    error = refusal(subject, recipe=replace(SMALL, n_batch=3, n_ubatch=3), max_sessions=4)
    assert (error.code, error.fields["field"], error.fields["actual"]) == ("argument", "recipe.n_batch", "3")
