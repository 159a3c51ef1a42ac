"""How the tables of this package are written: one call per variant."""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict, Unpack

from gguf import GGMLQuantizationType as Type

from toy.architectures.keys import PLAIN
from toy.architectures.variant import Keys, Value, Variant

BIASES = "*.bias"
HEAD = "output.weight"
ROPE = "rope_*"
"""Optional tensors of many architectures."""


class _Others(TypedDict, total=False):
    is_shell: bool
    tokens: int
    cuts: tuple[tuple[int, ...], ...]
    weights: Type


def model(
    architecture: str, *keys: Keys, detail: str = "", without: tuple[str, ...] = (), **others: Unpack[_Others]
) -> Variant:
    """A variant with all tensors that the library knows for it but those `without`.

    Later keys win over earlier ones, and all over the plain ones.
    """
    merged: dict[str, Value] = {}
    for more in (PLAIN, *keys):
        merged.update(more)
    return Variant(architecture=architecture, detail=detail, keys=merged, without=without, **others)


def bare(variant: Variant, *without: str) -> tuple[Variant, Variant]:
    """The variant, and one without those optional tensors, as most real models are."""
    detail = "tied" if without == (HEAD,) else "bare"
    return variant, replace(variant, detail=_join(variant.detail, detail), without=variant.without + without)


def fused(variant: Variant, *without: str) -> Variant:
    """The variant with queries, keys and values in one matrix."""
    return replace(
        variant, detail=_join(variant.detail, "fused"), fused=True, without=variant.without + without
    )


def _join(first: str, second: str) -> str:
    return f"{first}-{second}" if first else second
