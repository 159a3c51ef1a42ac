"""Stages of a model by bytes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_worker import Inspection, Memory, Recipe
from gguf_worker.errors import PlanError
from gguf_worker.planning import Plan, Weights, plan_capacities, plan_shards

MEMORY = Memory(weights_bytes=0, kv_bytes=60, compute_bytes=3)
RECIPE = Recipe(n_batch=1)
"""With rows of one value the scratch buffers of each stage are 7 bytes."""


def inspection(
    layers: tuple[int, ...] = (10, 10, 10, 10, 10, 10),
    *,
    embedding: int = 40,
    head: int = 50,
    tied: bool = False,
    period: int = 1,
) -> Inspection:
    """An artifact with layers of so many bytes."""
    return Inspection(
        artifact="a" * 64,
        files=(),
        architecture="toy",
        model_name="",
        quantization="f32",
        n_layer=len(layers),
        n_embd=1,
        n_vocab=1,
        n_ctx_train=1,
        n_expert=0,
        n_tensors=1,
        tensor_bytes=sum(layers) + embedding + head,
        embedding_bytes=embedding,
        head_bytes=head,
        tied_head=tied,
        layer_bytes=layers,
        slice=None,
        supported=True,
        cut_period=period,
        reason="",
    )


def ranges(plan: Plan) -> list[tuple[int, int]]:
    return [stage.layers for stage in plan.stages]


def test_plan_counts_what_each_stage_holds() -> None:
    """The first stage has the embedding, the last one the head, each its KV and its scratch buffers."""
    plan = plan_shards(Weights.of(inspection(), MEMORY, RECIPE), 3)
    assert ranges(plan) == [(0, 2), (2, 5), (5, 6)]
    assert [stage.weights_bytes for stage in plan.stages] == [60, 30, 60]
    assert [stage.kv_bytes for stage in plan.stages] == [20, 30, 10]
    assert [stage.compute_bytes for stage in plan.stages] == [7, 7, 7]
    assert plan.cuts == (2, 5)
    assert plan.total_bytes == 60 + 30 + 60 + 60 + 3 * 7
    assert plan.fits


def test_tied_head_is_held_once_by_a_stage_that_has_both() -> None:
    """One stage holds the shared tensor once; two stages hold it each."""
    weights = Weights.of(inspection(tied=True), MEMORY, RECIPE)
    assert [stage.weights_bytes for stage in plan_shards(weights, 1).stages] == [60 + 50]
    assert sum(stage.weights_bytes for stage in plan_shards(weights, 2).stages) == 60 + 40 + 50


@given(
    layers=st.lists(st.integers(0, 100), min_size=1, max_size=14).map(tuple),
    period=st.integers(1, 5),
    tied=st.booleans(),
    data=st.data(),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_plan_keeps_to_allowed_cuts(
    layers: tuple[int, ...], period: int, tied: bool, data: st.DataObject
) -> None:
    """Any number of shards up to the most covers every layer once, and cuts only where it is allowed."""
    weights = Weights.of(inspection(layers, tied=tied, period=period), MEMORY, RECIPE)
    plan = plan_shards(weights, data.draw(st.integers(1, weights.most_stages)))
    assert all(cut % period == 0 and cut <= len(layers) - period for cut in plan.cuts)
    assert ranges(plan)[0][0] == 0
    assert ranges(plan)[-1][1] == len(layers)
    assert all(one[1] == other[0] for one, other in pairwise(ranges(plan)))
    assert all(start < end for start, end in ranges(plan))


@given(
    layers=st.lists(st.integers(1, 100), min_size=1, max_size=8).map(tuple),
    capacities=st.lists(st.integers(1, 300), min_size=1, max_size=4),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_plan_fits_wherever_filling_up_would(layers: tuple[int, ...], capacities: list[int]) -> None:
    """Machines that can hold the model when each takes as much as it can, hold the plan."""
    weights = Weights.of(inspection(layers), MEMORY, RECIPE)
    done = 0
    for capacity in capacities:
        done = max(end for end in range(done, len(layers) + 1) if weights.total_of(done, end) <= capacity)
    assert plan_capacities(weights, capacities).fits is (done == len(layers))


def test_machines_are_filled_alike() -> None:
    """A machine of twice the memory gets about twice the bytes."""
    weights = Weights.of(inspection((10,) * 30, embedding=0, head=0), replace(MEMORY, kv_bytes=0), RECIPE)
    plan = plan_capacities(weights, (200, 400, 200))
    assert [end - start for start, end in ranges(plan)] == [7, 16, 7]


def test_plan_that_does_not_fit_says_what_is_missing() -> None:
    """What is too much is told for each machine, in bytes."""
    plan = plan_capacities(Weights.of(inspection(), MEMORY, RECIPE), (100, 60))
    assert not plan.fits
    assert sum(stage.missing_bytes for stage in plan.stages) > 0
    for stage in plan.stages:
        assert stage.capacity_bytes is not None
        assert stage.missing_bytes == max(0, stage.total_bytes - stage.capacity_bytes)


def test_machine_that_would_not_help_gets_nothing() -> None:
    """A machine that cannot hold one layer is left out, and the others go on around it."""
    plan = plan_capacities(Weights.of(inspection(), MEMORY, RECIPE), (200, 1, 200))
    assert plan.fits
    assert ranges(plan)[1][0] == ranges(plan)[1][1]
    assert plan.stages[1].total_bytes == 0
    assert len(plan.used) == 2


@pytest.mark.parametrize("n_shards", [0, 4])
def test_number_of_shards_that_cannot_be_had_is_refused(n_shards: int) -> None:
    """The refusal names how many there can be: one for each piece between allowed cuts."""
    weights = Weights.of(inspection(period=2), MEMORY, RECIPE)
    with pytest.raises(PlanError, match=r"6 layers .* ask for 1 to 3"):
        plan_shards(weights, n_shards)


def test_model_that_may_not_be_cut_has_one_stage() -> None:
    """A cut period of 0 leaves the whole."""
    weights = Weights.of(inspection(period=0), MEMORY, RECIPE)
    assert weights.most_stages == 1
    assert ranges(plan_capacities(weights, (1000, 500))) == [(0, 6), (6, 6)]


def test_model_that_may_not_be_cut_says_why() -> None:
    """One stage can be had of it; for more of them the architecture's own reason is given."""
    found = replace(inspection(), supported=False, cut_period=0, reason="it is of one piece; serve it whole")
    weights = Weights.of(found, MEMORY, RECIPE)
    assert ranges(plan_shards(weights, 1)) == [(0, 6)]
    with pytest.raises(PlanError, match="2 shards; it is of one piece"):
        plan_shards(weights, 2)


def test_slice_cannot_be_planned() -> None:
    """A slice is no whole model, and has no plan."""
    with pytest.raises(PlanError, match="layers 2:4 only"):
        Weights.of(replace(inspection(), slice=(2, 4)), MEMORY, RECIPE)


@pytest.mark.parametrize("capacities", [(), (0,), (5, -1)])
def test_machine_without_memory_is_refused(capacities: tuple[int, ...]) -> None:
    """A plan for nothing is a mistake of its caller."""
    with pytest.raises(PlanError, match="more than 0 bytes"):
        plan_capacities(Weights.of(inspection(), MEMORY, RECIPE), capacities)


def test_range_of_layers_is_divided_as_the_model_is() -> None:
    """Only these layers, at the cuts that the model allows, with the embedding or the head where they are in
    it."""
    weights = Weights.of(inspection(period=2), MEMORY, RECIPE)
    assert ranges(plan_shards(weights.within((2, 6)), 2)) == [(2, 4), (4, 6)]
    assert ranges(plan_shards(weights.within((0, 6)), 1)) == [(0, 6)]
    assert weights.within((2, 6)).tensors_of(2, 6) == weights.tensors_of(2, 6) == 40 + 50
    assert weights.within((0, 4)).tensors_of(0, 4) == 40 + 40


def test_range_that_the_model_does_not_allow_is_refused() -> None:
    """With what would be allowed; so are more shards than it has pieces."""
    weights = Weights.of(inspection(period=2), MEMORY, RECIPE)
    with pytest.raises(PlanError, match=r"layers 1:4 are no part of this model; it may be cut before 2, 4"):
        weights.within((1, 4))
    with pytest.raises(PlanError, match=r"layers 2:6 cannot be cut into 3 shards; ask for 1 to 2"):
        plan_shards(weights.within((2, 6)), 3)
