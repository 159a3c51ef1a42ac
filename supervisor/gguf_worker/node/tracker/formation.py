"""Routes from what a tracker knows. Pure: of the same view and latencies come the same routes and reasons.

A route is complete, of stages that belong together (`groups`), each of which takes sessions, and there is a
certificate for what they compute. Of all such routes of a group the one with the least cost is taken: a
shortest path over the boundaries between layers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gguf_worker.node.tracker.certificates import certificate_for, why_dark
from gguf_worker.node.tracker.groups import Group, StagePlan, gaps, groups_of, key_of, listed
from gguf_worker.node.tracker.registration import DRAINING
from gguf_worker.node.tracker.tracker import View

HOP_US = 1_000
"""What a stage costs at least: fewer stages are better."""
UNKNOWN_LATENCY_US = 2_000
"""Of a node that nobody measured."""
LOAD_US = 20_000
"""What a stage costs with as many sessions open or waiting as it can have."""

SHORTEST_PREFIX = 4
"""Fewest letters or digits by which a model may be named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The models of which routes are wanted."""

    model: str | None = None
    """Its name, in any case, or its artifact's digest, or how only that one begins; None is every model."""

    def __str__(self) -> str:
        return "any model" if self.model is None else self.model


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutePlan:
    """A complete model on nodes that can be used."""

    artifact: str
    recipe: Mapping[str, str]
    build_class: str
    certificate: str
    """Id of the certificate that stands for it."""
    stages: tuple[StagePlan, ...]
    """In the order of their layers."""
    cost_us: int
    """What was made least: latency, load and number of stages, in microseconds."""

    @property
    def model(self) -> str:
        """Name of the model."""
        model = self.stages[0].stage.model
        return model.name or model.architecture


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why something that is registered is in no route."""

    subject: str
    """A node, or what a group of stages computes."""
    reason: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Formation:
    """What can be used, and why not the rest."""

    routes: tuple[RoutePlan, ...] = ()
    """The best one of each group, those of the least cost first."""
    refused: tuple[Refusal, ...] = ()


def routes(
    view: View,
    wanted: Wanted | None = None,
    *,
    measured: Mapping[str, float] | None = None,
    with_full: bool = False,
) -> Formation:
    """The routes of the wanted models. `measured` are seconds to each node, infinite where it cannot be
    reached; `with_full` counts also stages that take no further session at this time."""
    groups, faults = groups_of(view)
    chosen, refused = _chosen(groups, wanted or Wanted())
    refused += [Refusal(subject=node, reason=fault) for node, fault in (*faults, *view.refused.items())]
    plans = []
    for group in chosen:
        plan, reasons = _form(group, groups, view, measured or {}, with_full=with_full)
        plans += [] if plan is None else [plan]
        refused += [Refusal(subject=str(group), reason=reason) for reason in reasons]
    return Formation(
        routes=tuple(sorted(plans, key=lambda plan: (plan.cost_us, plan.artifact, str(plan.stages)))),
        refused=tuple(refused),
    )


def replacements(
    view: View,
    plan: RoutePlan,
    index: int,
    lost_node: str,
    *,
    measured: Mapping[str, float] | None = None,
) -> tuple[StagePlan, ...]:
    """Stages of other nodes that can stand in for one of a route, the best first: the same layers of the same
    model, recipe and build."""
    lost = plan.stages[index]
    key = key_of(lost.stage)
    groups, _ = groups_of(view)
    found = [
        member
        for group in groups
        if group.key == key
        for member in group.members
        if member.layers == lost.layers
        and member.node != lost_node
        and (_unusable(member, group, measured or {}) or _full(member)) is None
    ]
    return tuple(sorted(found, key=lambda member: (_cost_us(member, measured or {}), member.node)))


# ---- one group ----------------------------------------------------------------------------------


def _form(
    group: Group, groups: Sequence[Group], view: View, measured: Mapping[str, float], *, with_full: bool
) -> tuple[RoutePlan | None, list[str]]:
    """The group's best route, or every reason why it has none."""
    usable, reasons = [], []
    for member in group.members:
        reason = _unusable(member, group, measured) or (None if with_full else _full(member))
        if reason is None:
            usable.append(member)
        else:
            reasons.append(reason)
    path = _cheapest(usable, group.model.n_layer, measured)
    certificate = certificate_for(group.any_stage, view.certificates)
    if path is None:
        reasons += _incomplete(group, groups, usable)
    if certificate is None:
        reasons.append(why_dark(group.any_stage, view.certificates))
    if path is None or certificate is None:
        return None, reasons
    identity = group.any_stage.identity
    plan = RoutePlan(
        artifact=identity.artifact,
        recipe=dict(sorted(identity.recipe.items())),
        build_class=group.any_stage.build.build_class,
        certificate=certificate.id,
        stages=path,
        cost_us=sum(_cost_us(stage, measured) for stage in path),
    )
    return plan, []


def _cheapest(
    stages: Sequence[StagePlan], n_layer: int, measured: Mapping[str, float]
) -> tuple[StagePlan, ...] | None:
    """The path from layer 0 to the end that costs least; among equals the shorter one, then the one whose
    names come first. None where there is no path."""
    best: dict[int, tuple[int, int, tuple[str, ...], tuple[StagePlan, ...]]] = {0: (0, 0, (), ())}
    for stage in sorted(stages, key=lambda stage: stage.layers):
        start, end = stage.layers
        if start not in best:  # whatever ends there starts earlier, and was looked at before
            continue
        cost, hops, names, path = best[start]
        candidate = (cost + _cost_us(stage, measured), hops + 1, (*names, str(stage)), (*path, stage))
        if end not in best or candidate[:3] < best[end][:3]:
            best[end] = candidate
    return best[n_layer][3] if n_layer in best else None


def _cost_us(member: StagePlan, measured: Mapping[str, float]) -> int:
    latency_s = measured.get(member.node)
    latency_us = UNKNOWN_LATENCY_US if latency_s is None else round(max(0.0, latency_s) * 1e6)
    load = member.stage.load
    return HOP_US + latency_us + LOAD_US * (load.sessions + load.queued) // member.stage.capacity.max_sessions


# ---- reasons ------------------------------------------------------------------------------------


def _unusable(member: StagePlan, group: Group, measured: Mapping[str, float]) -> str | None:
    """Why a stage that fits cannot be used, or is no end of a route; None where it can."""
    stage, (start, end) = member.stage, member.layers
    if member.node in group.draining or stage.state == DRAINING:
        return f"{member}: draining"
    if not member.endpoints:
        return f"{member}: without an endpoint"
    if not math.isfinite(measured.get(member.node, 0.0)):
        return f"{member}: cannot be reached"
    if start == 0 and not stage.ownership.token_embedding:
        return f"{member}: the first layers without the token embedding"
    if end == stage.model.n_layer and not stage.ownership.output_head:
        return f"{member}: the last layers without the output head"
    return None


def _full(member: StagePlan) -> str | None:
    """Why a stage takes no further session at this time; None where it does."""
    stage = member.stage
    if stage.load.sessions >= stage.capacity.max_sessions:
        return f"{member}: all {stage.capacity.max_sessions} sessions are taken"
    if 0 < stage.capacity.kv_cells <= stage.load.kv_cells_used:
        return f"{member}: all {stage.capacity.kv_cells} KV cells are taken"
    return None


def _incomplete(group: Group, groups: Sequence[Group], usable: Sequence[StagePlan]) -> Iterator[str]:
    """What is missing for a route, and who has it but does not fit."""
    held = [member.layers for member in group.members]
    n_layer = group.model.n_layer
    missing = gaps(held, n_layer)
    for start, end in missing:
        yield f"layers {start}:{end} are held by nobody"
    yield from _misfits(group, groups, missing)
    taken = [member.layers for member in usable]
    if not gaps(taken, n_layer):
        ranges = listed(f"{start}:{end}" for start, end in sorted(set(taken)))
        yield f"the layers {ranges} do not join: each part must start where another one ends"


def _misfits(group: Group, groups: Sequence[Group], missing: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Stages of other groups that hold what is missing of the same model, or nearly the same, and how they
    differ."""
    found: dict[str, list[StagePlan]] = defaultdict(list)
    for other in groups:
        if other.key == group.key or not _is_related(group, other):
            continue
        holding = [member for member in other.members if _overlaps(member.layers, missing)]
        if holding:
            found["; ".join(map(str, group.key.differences(other.key)))] += holding
    for differences, members in found.items():
        verb = "differs" if len(members) == 1 else "differ"
        yield f"{listed(members)} {verb}: {differences}"


def _is_related(group: Group, other: Group) -> bool:
    """Whether both serve one artifact, or files that call themselves the same model."""
    if group.artifact == other.artifact:
        return True
    one, two = group.model, other.model
    return (one.architecture, one.name, one.n_layer) == (two.architecture, two.name, two.n_layer)


def _overlaps(layers: tuple[int, int], missing: Sequence[tuple[int, int]]) -> bool:
    return any(start < layers[1] and layers[0] < end for start, end in missing)


# ---- which models -------------------------------------------------------------------------------


def _chosen(groups: Sequence[Group], wanted: Wanted) -> tuple[list[Group], list[Refusal]]:
    """The groups of the wanted models; a refusal where there are none or it is not clear which."""
    if wanted.model is None:
        return list(groups), []
    text = wanted.model.casefold()
    named = [group for group in groups if text in (group.model.name.casefold(), group.artifact)]
    if named:
        return named, []
    found = [group for group in groups if _begins(text, group)]
    models = sorted({f"{group.model.name} {group.artifact[:12]}" for group in found or groups})
    if len({group.artifact for group in found}) > 1:
        reason = f"several models begin like that: {listed(models)} (write more of it)"
    elif not found:
        reason = f"no node serves it (there is {listed(models) or 'no model'})"
    else:
        return found, []
    return [], [Refusal(subject=wanted.model, reason=reason)]


def _begins(text: str, group: Group) -> bool:
    names = (group.model.name.casefold(), group.artifact)
    return len(text) >= SHORTEST_PREFIX and any(name.startswith(text) for name in names)
