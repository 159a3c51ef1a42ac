"""`gguf-worker routes`: which routes the nodes of a mesh form, and why the rest stays dark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from gguf_worker.cli.errors import EXIT_FAILED
from gguf_worker.cli.nodes import endpoint, endpoint_to_json, stage_to_json
from gguf_worker.cli.text import one_line, plain_table, print_json, printable
from gguf_worker.node.nats import NatsOptions, connect_nats
from gguf_worker.node.tracker.formation import Formation, RoutePlan, Wanted, routes
from gguf_worker.node.tracker.groups import StagePlan, recipe_id
from gguf_worker.node.tracker.jetstream import JetStreamTracker

COLUMNS = ("layers", "node", "sessions", "reached at")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutesConfig:
    nats: NatsOptions
    model: str | None
    """None is every model."""
    json: bool


async def show_routes(config: RoutesConfig) -> int:
    """Prints the routes and the reasons, and returns the exit status: 0 where there is a route."""
    async with connect_nats(config.nats) as nats, JetStreamTracker(nats) as tracker:
        formation = routes(tracker.view(), Wanted(model=config.model))
    if config.json:
        print_json(to_json(formation))
    else:
        print(describe(formation))
    return 0 if formation.routes else EXIT_FAILED


def describe(formation: Formation) -> str:
    """Each route with its stages, then every reason, by what it is about."""
    parts = [_route(plan) for plan in formation.routes] or ["no route"]
    if formation.refused:
        parts.append("\n".join(["not used:", *_reasons(formation)]))
    return "\n\n".join(parts)


def _route(plan: RoutePlan) -> str:
    table = plain_table(COLUMNS, [_row(stage) for stage in plan.stages])
    return "\n".join(
        [
            f"{printable(plan.model)}",
            f"  artifact     {plan.artifact}",
            f"  recipe       {recipe_id(plan.recipe)}",
            f"  build        {printable(plan.build_class)}",
            f"  certificate  {plan.certificate}",
            *(f"  {line}" for line in table.splitlines()),
        ]
    )


def _row(plan: StagePlan) -> tuple[str, ...]:
    start, end = plan.layers
    sessions = f"{plan.stage.load.sessions}/{plan.stage.capacity.max_sessions}"
    return (f"{start}:{end}", plan.node, sessions, ", ".join(map(endpoint, plan.endpoints)) or "-")


def _reasons(formation: Formation) -> Iterator[str]:
    for subject, refusals in groupby(formation.refused, lambda refusal: refusal.subject):
        yield f"  {one_line(subject)}"
        for refusal in refusals:
            yield f"    {one_line(refusal.reason)}"


def to_json(formation: Formation) -> dict[str, object]:
    return {
        "routes": [
            {
                "model": plan.model,
                "artifact": plan.artifact,
                "recipe": dict(plan.recipe),
                "build_class": plan.build_class,
                "certificate": plan.certificate,
                "cost_us": plan.cost_us,
                "stages": [
                    {
                        "node": stage.node,
                        "endpoints": [endpoint_to_json(found) for found in stage.endpoints],
                        **stage_to_json(stage.stage),
                    }
                    for stage in plan.stages
                ],
            }
            for plan in formation.routes
        ],
        "refused": [{"subject": refusal.subject, "reason": refusal.reason} for refusal in formation.refused],
    }
