"""`gguf-worker plan`: where to cut a model so that no stage holds more than it must."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from gguf_worker import Inspection, Recipe
from gguf_worker.cli.cache import parse_size
from gguf_worker.cli.division import look_at_model, weigh
from gguf_worker.cli.errors import EXIT_FAILED, CommandError
from gguf_worker.cli.options import HostOptions, RecipeOptions, arguments_of
from gguf_worker.cli.text import plain_table, print_json, size
from gguf_worker.planning import Plan, Stage, plan_capacities, plan_shards


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    model: str
    n_shards: int | None
    capacities: tuple[int, ...] | None
    """Bytes that each machine has; exactly one of the two is given."""
    options: RecipeOptions
    """As they were written, for the commands that carry the plan out."""
    recipe: Recipe
    host: HostOptions
    json: bool


def parse_capacities(text: str) -> tuple[int, ...]:
    """`"8GiB,16GiB"` in bytes. Raises CommandError."""
    capacities = tuple(parse_size(word) for word in text.split(","))
    if 0 in capacities:
        raise CommandError(f"--memory {text} has a machine without memory", remedy="leave it out")
    return capacities


async def propose(config: PlanConfig) -> int:
    """Prints the plan and the commands that carry it out, and returns the exit status: 0 where it fits."""
    found = await look_at_model(config.model, config.host, silent=config.json)
    spec = config.host.spec(config.model, config.recipe, artifact=found.artifact)
    weights = await weigh(spec, found)
    if config.capacities is not None:
        plan = plan_capacities(weights, config.capacities)
    else:
        assert config.n_shards is not None
        plan = plan_shards(weights, config.n_shards)
    if config.json:
        print_json(to_json(plan, found, config))
    else:
        print(describe(plan, config))
    return 0 if plan.fits else EXIT_FAILED


# ---- what is shown ------------------------------------------------------------------------------


def describe(plan: Plan, config: PlanConfig) -> str:
    """The plan as text: a table, what is missing, and the commands."""
    capacity = () if config.capacities is None else ("of",)
    columns = ("layers", "tensors", "KV", "compute, at most", "together", *capacity)
    table = plain_table(columns, [_row(stage) for stage in plan.stages])
    rest = "\n".join(commands(plan, config)) if plan.fits else _shortfall(plan)
    return f"{table}\n\n{rest}"


def _row(stage: Stage) -> tuple[str, ...]:
    start, end = stage.layers
    bytes_ = (stage.weights_bytes, stage.kv_bytes, stage.compute_bytes, stage.total_bytes)
    capacity = () if stage.capacity_bytes is None else (size(stage.capacity_bytes),)
    return (f"{start}:{end}" if start < end else "-", *map(size, bytes_), *capacity)


def _shortfall(plan: Plan) -> str:
    """What is missing where, and what can be done about it."""
    lines = [
        f"layers {stage.layers[0]}:{stage.layers[1]} need {size(stage.total_bytes)}, which is "
        f"{size(stage.missing_bytes)} more than the {size(stage.capacity_bytes)} of machine {number}"
        for number, stage in enumerate(plan.stages, start=1)
        if stage.missing_bytes and stage.capacity_bytes is not None
    ]
    lines.append(
        f"it does not fit: {size(plan.total_bytes)} are needed; give more machines or memory, a smaller "
        "--ctx-size, or a quantised KV cache (--cache-type-k q8_0 --cache-type-v q8_0)"
    )
    return "\n".join(lines)


def commands(plan: Plan, config: PlanConfig) -> list[str]:
    """What carries the plan out: one `run` where all is on one machine, and a `serve` for each stage."""
    model = shlex.quote(config.model)
    options = list(_shared_options(config))
    serve = [
        " ".join(["gguf-worker", "serve", model, "--layers", f"{start}:{end}", *options])
        for start, end in (stage.layers for stage in plan.used)
    ]
    if config.capacities is not None:
        return serve
    cuts = ["--cuts", ",".join(map(str, plan.cuts))] if plan.cuts else []
    return [" ".join(["gguf-worker", "run", model, *cuts, *options, "--prompt", "'…'"]), *serve]


def _shared_options(config: PlanConfig) -> Iterator[str]:
    """The recipe and how workers are run, as they were given."""
    return map(shlex.quote, chain(arguments_of(config.options), arguments_of(config.host)))


def to_json(plan: Plan, found: Inspection, config: PlanConfig) -> dict[str, object]:
    return {
        "model": config.model,
        "artifact": found.artifact,
        "n_layer": found.n_layer,
        "cut_period": found.cut_period,
        "cuts": list(plan.cuts),
        "fits": plan.fits,
        "total_bytes": plan.total_bytes,
        "stages": [
            {
                "layers": list(stage.layers),
                "weights_bytes": stage.weights_bytes,
                "kv_bytes": stage.kv_bytes,
                "compute_bytes": stage.compute_bytes,
                "total_bytes": stage.total_bytes,
                "capacity_bytes": stage.capacity_bytes,
                "missing_bytes": stage.missing_bytes,
            }
            for stage in plan.stages
        ],
        "commands": commands(plan, config) if plan.fits else [],
    }
