"""Field by field comparison of what was asked with what is there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gguf_worker.identity.identity import Identity
from gguf_worker.identity.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field that differs, with both values as text."""

    field: str
    expected: str
    actual: str

    def __str__(self) -> str:
        return f"{self.field}: expected {self.expected}, actual {self.actual}"


def recipe_values(recipe: Recipe) -> dict[str, object]:
    """The recipe's fields under the names that errors use: `recipe.<name>`."""
    return {f"recipe.{name}": value for name, value in recipe.to_map().items()}


def identity_values(identity: Identity) -> dict[str, object]:
    """Every field that an `open` must repeat: artifact, start, end and the recipe's."""
    return {
        "artifact": identity.artifact,
        "start": identity.start,
        "end": identity.end,
        **recipe_values(identity.recipe),
    }


def differences(expected: Mapping[str, object], actual: Mapping[str, object]) -> list[Difference]:
    """The fields of `expected` whose value in `actual` is another or missing, in their order."""
    return [
        Difference(field=name, expected=_printed(value), actual=_printed(actual.get(name, "missing")))
        for name, value in expected.items()
        if name not in actual or actual[name] != value
    ]


def _printed(value: object) -> str:
    """A value as text; nine digits tell every float32 apart, and the worker prints as many."""
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def error_fields(found: Iterable[Difference]) -> dict[str, str]:
    """`<name>.expected` and `<name>.actual` for each difference, as the worker's own errors have them."""
    fields: dict[str, str] = {}
    for difference in found:
        fields[f"{difference.field}.expected"] = difference.expected
        fields[f"{difference.field}.actual"] = difference.actual
    return fields
