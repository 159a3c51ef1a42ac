"""Digests, recipe, and the comparison of identities field by field. No I/O."""

from gguf_worker.identity.compare import Difference, differences, error_fields, identity_values, recipe_values
from gguf_worker.identity.digest import artifact_digest
from gguf_worker.identity.identity import Identity
from gguf_worker.identity.recipe import DTYPE_BYTES, Recipe

__all__ = [
    "DTYPE_BYTES",
    "Difference",
    "Identity",
    "Recipe",
    "artifact_digest",
    "differences",
    "error_fields",
    "identity_values",
    "recipe_values",
]
