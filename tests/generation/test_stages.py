"""Whether shards form one complete model."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from fakes import spec
from gguf_worker import Identity, Recipe
from gguf_worker.errors import RouteError
from gguf_worker.generation.stages import check_specs, check_stages
from gguf_worker.protocol.messages import Ownership

LAYERS = 12


def identity(start: int, end: int, *, artifact: str = "a" * 64, recipe: Recipe | None = None) -> Identity:
    return Identity(artifact=artifact, start=start, end=end, recipe=recipe or Recipe())


def ownership(of: Identity) -> Ownership:
    return Ownership(
        layers=(of.start, of.end),
        owned_layers=of.end - of.start,
        tensors=1,
        bytes=1,
        token_embedding=of.start == 0,
        output_head=of.end == LAYERS,
        vocabulary=True,
    )


def check(*stages: Identity) -> None:
    check_stages(stages, [ownership(stage) for stage in stages], LAYERS)


@pytest.mark.parametrize("cuts", [(), (6,), (1, 11), (3, 7, 9)])
def test_stages_that_cover_every_layer_once_are_a_route(cuts: tuple[int, ...]) -> None:
    """Any cuts make a route as long as nothing is missing or twice."""
    check(*(identity(start, end) for start, end in pairwise((0, *cuts, LAYERS))))


@pytest.mark.parametrize(
    ("stages", "field"),
    [
        ([identity(1, 12)], "start"),
        ([identity(0, 11)], "end"),
        ([identity(0, 5), identity(6, 12)], "start"),
        ([identity(0, 7), identity(6, 12)], "start"),
        ([identity(0, 6), identity(6, 12, artifact="b" * 64)], "artifact"),
        ([identity(0, 6), identity(6, 12, recipe=Recipe(n_ctx=512))], "recipe.n_ctx"),
    ],
)
def test_stages_that_are_no_route_are_refused(stages: list[Identity], field: str) -> None:
    """The field that does not fit is named with both values."""
    with pytest.raises(RouteError) as caught:
        check(*stages)
    assert caught.value.fields.keys() == {f"{field}.expected", f"{field}.actual"}


@pytest.mark.parametrize("lacking", ["token_embedding", "output_head"])
def test_stages_that_own_too_little_are_refused(lacking: str) -> None:
    """What a stage must do is judged by what it really loaded."""
    whole = identity(0, LAYERS)
    owned = replace(ownership(whole), **{lacking: False})  # type: ignore[arg-type]
    with pytest.raises(RouteError) as caught:
        check_stages([whole], [owned], LAYERS)
    assert caught.value.fields == {f"{lacking}.expected": "True", f"{lacking}.actual": "False"}


@pytest.mark.parametrize(
    "layers",
    [[], [(1, 0)], [(0, 4), (5, 0)], [(0, 0), (4, 0)], [(0, 0), (0, 0)]],
    ids=["none", "late start", "gap", "open end in the middle", "twice"],
)
def test_specs_that_cannot_be_a_route_are_refused_before_anything_starts(
    layers: list[tuple[int, int]],
) -> None:
    """What can be seen without a worker is seen without one."""
    with pytest.raises(RouteError):
        check_specs([spec(range_) for range_ in layers])


def test_specs_of_two_recipes_are_refused() -> None:
    """One route has one recipe."""
    with pytest.raises(RouteError) as caught:
        check_specs([spec((0, 4)), spec((4, 0), recipe=Recipe(repack=False))])
    assert caught.value.fields == {"recipe.repack.expected": "True", "recipe.repack.actual": "False"}
