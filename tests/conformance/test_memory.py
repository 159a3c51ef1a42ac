"""What a shard takes is known before it is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from conformance.shard import SMALL, OpenShard, ShardError, Subject
from shard_engine import Memory

WIDE = replace(SMALL, n_ctx=1024, n_batch=256, n_ubatch=256)
RECIPES = {
    "small": SMALL,
    "wide": WIDE,
    "apart": replace(WIDE, kv_unified=False),
    "f32 cells": replace(WIDE, type_k="f32", type_v="f32"),
    "q8_0 cells": replace(WIDE, type_k="q8_0", type_v="q8_0"),
    "bf16 rows": replace(WIDE, boundary="bf16"),
}
TOLERANCE = 0.10


def total(memory: Memory) -> int:
    return memory.weights_bytes + memory.kv_bytes + memory.compute_bytes


@pytest.mark.parametrize("layers", [(0, 6), (0, 3), (2, 4), (3, 6)], ids=str)
@pytest.mark.parametrize("name", RECIPES)
def test_estimate_is_what_an_open_takes(
    subject: Subject, open_shard: OpenShard, name: str, layers: tuple[int, int]
) -> None:
    """Weights, KV and compute bytes as estimated agree with those of the shard once it is loaded."""
    estimated = subject.estimate(subject.options(layers=layers, recipe=RECIPES[name]))
    loaded = open_shard(subject, layers=layers, recipe=RECIPES[name]).description.memory
    if subject.engine == "fake":
        assert estimated == loaded
    assert estimated.weights_bytes == pytest.approx(loaded.weights_bytes, rel=TOLERANCE)
    assert estimated.kv_bytes == pytest.approx(loaded.kv_bytes, rel=TOLERANCE)
    assert total(estimated) == pytest.approx(total(loaded), rel=TOLERANCE)


@pytest.mark.parametrize("layers", [(0, 6), (2, 4)], ids=str)
def test_open_that_would_not_fit_is_refused_with_the_figures(
    subject: Subject, layers: tuple[int, int]
) -> None:
    """One byte less than needed is `memory`, with needed and available and where it would go; as many as
    needed are enough."""
    needed = subject.estimate(subject.options(layers=layers))
    with pytest.raises(ShardError) as caught:
        subject.open(subject.options(layers=layers, memory_available=total(needed) - 1)).close()
    assert caught.value.code == "memory"
    figures = {name: int(value) for name, value in caught.value.fields.items()}
    assert figures == {
        "needed_bytes": total(needed),
        "available_bytes": total(needed) - 1,
        "weights_bytes": needed.weights_bytes,
        "kv_bytes": needed.kv_bytes,
        "compute_bytes": needed.compute_bytes,
    }
    subject.open(subject.options(layers=layers, memory_available=total(needed))).close()


def test_estimate_of_a_large_context_does_not_take_it(subject: Subject, note: Callable[[str], None]) -> None:
    """The cells of a long context are counted, not allocated, and an open that lacks them is a refusal.

    An engine may keep books for every cell meanwhile, so the context is one whose books are small.
    """
    recipe = replace(SMALL, n_ctx=2**20)
    estimated = subject.estimate(subject.options(recipe=recipe))
    note(
        f"{subject.engine}: a context of {recipe.n_ctx} is estimated at {estimated.kv_bytes >> 20} MiB of KV"
    )
    available = estimated.kv_bytes // 2
    with pytest.raises(ShardError) as caught:
        subject.open(subject.options(recipe=recipe, memory_available=available)).close()
    assert caught.value.code == "memory"
    assert caught.value.fields["available_bytes"] == str(available)
    assert int(caught.value.fields["kv_bytes"]) == estimated.kv_bytes > available


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"layers": (0, 7)}, "range"),
        ({"recipe": replace(SMALL, n_ctx=100)}, "unsupported"),
        ({"artifact": "0" * 64}, "identity"),
    ],
    ids=["range", "recipe", "artifact"],
)
def test_estimate_refuses_what_an_open_refuses(
    subject: Subject, changes: dict[str, object], code: str
) -> None:
    """Nothing is estimated that could not be opened."""
    with pytest.raises(ShardError) as caught:
        subject.estimate(subject.options(**changes))
    assert caught.value.code == code
