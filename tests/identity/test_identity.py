"""Recipe, identity, comparison, digests."""

from __future__ import annotations

import hashlib

import pytest

from gguf_worker._schema import SchemaError
from gguf_worker.identity import (
    Difference,
    Identity,
    Recipe,
    artifact_digest,
    differences,
    error_fields,
    identity_values,
    recipe_values,
)

ONE, TWO, THREE = (hashlib.sha256(text).hexdigest() for text in (b"1", b"2", b"3"))


def identity(**recipe: object) -> Identity:
    return Identity(artifact=ONE, start=0, end=4, recipe=Recipe(**recipe))  # type: ignore[arg-type]


def test_recipe_survives_its_map() -> None:
    """A recipe is its map and the other way round."""
    recipe = Recipe(n_ctx=512, n_threads=3, type_k="q8_0", n_gpu_layers=-1, flash_attn=False)
    assert Recipe.from_map(recipe.to_map()) == recipe


def test_recipe_with_an_unknown_field_is_refused() -> None:
    """A field that could change a result is not passed over."""
    with pytest.raises(SchemaError, match="unknown key 'later'"):
        Recipe.from_map({**Recipe().to_map(), "later": 1})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n_ctx", -1),
        ("n_ctx", 2**32),
        ("n_ctx", True),
        ("flash_attn", 1),
        ("type_k", "x" * 64),
        ("type_v", "a\0b"),
        ("kv_unified", 0),
        ("main_gpu", 2**31),
        ("rope_freq_base", "10000"),
        ("rope_freq_scale", float("nan")),
        ("yarn_ext_factor", float("inf")),
        ("yarn_beta_slow", 1e39),
    ],
)
def test_recipe_with_a_wrong_value_is_refused(key: str, value: object) -> None:
    """The key and what was expected are named, where a recipe is read and where one is made."""
    with pytest.raises(SchemaError, match=key):
        Recipe.from_map({key: value})
    with pytest.raises(SchemaError, match=key):
        Recipe(**{key: value})  # type: ignore[arg-type]


def test_recipe_numbers_are_compared_as_float32() -> None:
    """A number that was rounded on its way through the worker is still the one that was asked for."""
    asked = Recipe(rope_freq_base=10000.1, rope_freq_scale=0.1)
    attested = Recipe.from_map({**asked.to_map(), "rope_freq_base": 10000.099609375})
    assert asked == attested
    assert differences(recipe_values(asked), recipe_values(attested)) == []
    found = differences(recipe_values(asked), recipe_values(Recipe(rope_freq_base=10000.101)))
    assert found[0] == Difference(field="recipe.rope_freq_base", expected="10000.0996", actual="10000.1006")
    assert found[1] == Difference(field="recipe.rope_freq_scale", expected="0.100000001", actual="0")


def test_differences_of_equal_identities_are_none() -> None:
    """The shard's own digest is attested, never compared."""
    attested = Identity(artifact=ONE, start=0, end=4, recipe=Recipe(), shard=TWO)
    assert differences(identity_values(identity()), identity_values(attested)) == []
    assert attested.asked() == identity()


def test_differences_name_every_field_with_both_values() -> None:
    """All differing fields are listed at once, the recipe's under `recipe.`."""
    other = Identity(artifact=TWO, start=0, end=5, recipe=Recipe(n_ctx=8192, repack=False))
    found = differences(identity_values(identity()), identity_values(other))
    assert [difference.field for difference in found] == ["artifact", "end", "recipe.n_ctx", "recipe.repack"]
    assert found[1] == Difference(field="end", expected="4", actual="5")
    assert error_fields(found)["recipe.n_ctx.actual"] == "8192"


def test_differences_with_a_missing_field_say_so() -> None:
    """A field that is not there is a difference, not a match."""
    assert differences({"a": 1}, {}) == [Difference(field="a", expected="1", actual="missing")]


def test_artifact_digest_of_one_file_is_its_own() -> None:
    """A single file names its artifact."""
    assert artifact_digest([ONE]) == ONE


def test_artifact_digest_of_a_split_set_depends_on_the_order() -> None:
    """A split set is named by the digest of its files' raw digests, in split order."""
    raw = b"".join(bytes.fromhex(digest) for digest in (ONE, TWO, THREE))
    assert artifact_digest([ONE, TWO, THREE]) == hashlib.sha256(raw).hexdigest()
    assert artifact_digest([ONE, THREE, TWO]) != artifact_digest([ONE, TWO, THREE])


@pytest.mark.parametrize("digests", [[], ["ab"], [ONE[:-1]], ["z" * 64], [" ".join([ONE[:32], ONE[32:]])]])
def test_artifact_digest_of_what_is_no_digest_is_refused(digests: list[str]) -> None:
    """Only whole digests name files."""
    with pytest.raises(ValueError, match=r"digest|sha256|hexadecimal|file"):
        artifact_digest(digests)
