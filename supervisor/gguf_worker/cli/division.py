"""How commands divide a model into shards: looked at and weighed in a worker, cut by bytes, compared with the
memory that is here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import gguf_worker
from gguf_worker import Inspection, ShardSpec
from gguf_worker.cli.errors import EXIT_FAILED, CommandError
from gguf_worker.cli.inspect import InspectConfig, look_at
from gguf_worker.cli.layers import Range, ranges_of_cuts
from gguf_worker.cli.options import HostOptions
from gguf_worker.cli.text import size
from gguf_worker.planning import Weights, plan_shards
from gguf_worker.supervision.admission import REMEDY, available_memory, compares_memory


async def look_at_model(model: str, host: HostOptions, *, silent: bool) -> Inspection:
    """What the artifact is."""
    return await look_at(
        InspectConfig(model=model, engine=host.engine, cache_dir=host.cache_folder, json=silent)
    )


async def weigh(whole: ShardSpec, found: Inspection) -> Weights:
    """What its layers would occupy. A worker says what the whole model would take with the recipe."""
    return Weights.of(found, await gguf_worker.estimate(whole), whole.recipe)


async def divide(
    whole: ShardSpec,
    found: Inspection,
    layers: Range,
    *,
    n_shards: int,
    cuts: Sequence[int] | None = None,
) -> list[ShardSpec]:
    """One specification per shard of these layers: between the cuts, or else `n_shards` of them by bytes.

    Raises CommandError or PlanError where that cannot be had.
    """
    if cuts is None and n_shards == 1:
        return [replace(whole, layers=layers)]
    check_may_be_cut(whole.model, found)
    weights = (await weigh(whole, found)).within(layers)
    if cuts is not None:
        ranges = ranges_of_cuts(cuts, found.n_layer)
    else:
        ranges = tuple(stage.layers for stage in plan_shards(weights, n_shards).stages)
    check_room(weights, whole, layers)
    n_stages = len(ranges) if layers == (0, found.n_layer) else 0  # the rest is somebody else's
    return [replace(whole, layers=part, n_stages=n_stages) for part in ranges]


def check_may_be_cut(model: str, found: Inspection) -> None:
    """Raises CommandError, with the reason, where the architecture cannot be cut at all."""
    if not found.supported:
        raise CommandError(f"{model} cannot be cut: {found.reason}", exit_status=EXIT_FAILED)


def check_room(weights: Weights, whole: ShardSpec, layers: Range) -> None:
    """Raises CommandError where shards of these layers that start together would each find room here, but not
    all of them: each worker looks only at what it needs itself."""
    needed = weights.tensors_of(*layers) + weights.kv_of(*layers)
    available = available_memory()
    if compares_memory(whole) and needed > available.n_bytes:
        raise CommandError(
            f"tensors and KV of all shards need {size(needed)} and {size(available.n_bytes)} are available "
            f"(as {available.limit} has it)",
            remedy=REMEDY,
            exit_status=EXIT_FAILED,
        )
