"""Stages of a model, balanced by bytes, or fitted into what machines have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gguf_worker.errors import PlanError
from gguf_worker.planning.partition import balanced
from gguf_worker.planning.weights import Weights

Range = tuple[int, int]
"""Layers `[start, end)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage and what it would occupy, in bytes."""

    layers: Range
    """Empty, `(n, n)`, where a machine is not needed."""
    weights_bytes: int
    kv_bytes: int
    compute_bytes: int
    capacity_bytes: int | None = None
    """What its machine has; None where nobody said."""

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.compute_bytes

    @property
    def missing_bytes(self) -> int:
        """What its machine lacks; 0 where it fits."""
        return 0 if self.capacity_bytes is None else max(0, self.total_bytes - self.capacity_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Stages in order; together they hold every layer once."""

    stages: tuple[Stage, ...]

    @property
    def used(self) -> tuple[Stage, ...]:
        """The stages that hold layers."""
        return tuple(stage for stage in self.stages if stage.layers[0] < stage.layers[1])

    @property
    def cuts(self) -> tuple[int, ...]:
        """The layers before which the model is cut."""
        return tuple(stage.layers[0] for stage in self.used[1:])

    @property
    def total_bytes(self) -> int:
        return sum(stage.total_bytes for stage in self.stages)

    @property
    def fits(self) -> bool:
        return all(stage.missing_bytes == 0 for stage in self.stages)


def plan_shards(weights: Weights, n_shards: int) -> Plan:
    """`n_shards` stages of which the largest is as small as possible. Raises PlanError where the model cannot
    be cut into so many."""
    if not 1 <= n_shards <= weights.most_stages:
        raise PlanError(
            f"{_what(weights)} cannot be cut into {n_shards} shards; "
            f"{weights.reason or f'ask for 1 to {weights.most_stages}'}"
        )
    bounds = weights.bounds
    parts = balanced(
        weights.most_stages, n_shards, lambda _, start, end: weights.total_of(bounds[start], bounds[end])
    )
    return Plan(stages=tuple(_stage(weights, part, None) for part in parts))


def plan_capacities(weights: Weights, capacities: Sequence[int]) -> Plan:
    """One stage for each machine, in their order, so that the fullest is as little full as possible; one that
    would not help is left without layers. `Plan.fits` says whether it all goes in: where it does not, nothing
    else would either."""
    if not capacities or min(capacities) <= 0:
        raise PlanError("a plan needs the memory of at least one machine, each more than 0 bytes")
    parts = balanced(weights.most_stages, len(capacities), _fullness(weights, capacities), least=0)
    return Plan(
        stages=tuple(
            _stage(weights, part, capacity) for part, capacity in zip(parts, capacities, strict=True)
        )
    )


def _what(weights: Weights) -> str:
    start, end = weights.bounds[0], weights.bounds[-1]
    return f"a model of {end} layers" if (start, end) == (0, weights.n_layer) else f"layers {start}:{end}"


def _fullness(weights: Weights, capacities: Sequence[int]) -> Callable[[int, int, int], float]:
    bounds = weights.bounds
    return lambda index, start, end: weights.total_of(bounds[start], bounds[end]) / capacities[index]


def _stage(weights: Weights, pieces: Range, capacity: int | None) -> Stage:
    start, end = (weights.bounds[piece] for piece in pieces)
    is_empty = start == end
    return Stage(
        layers=(start, end),
        weights_bytes=0 if is_empty else weights.tensors_of(start, end),
        kv_bytes=weights.kv_of(start, end),
        compute_bytes=0 if is_empty else weights.compute,
        capacity_bytes=capacity,
    )
