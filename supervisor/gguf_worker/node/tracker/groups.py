"""Which stages belong together: those that compute one model with the same bits. Pure."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gguf_worker.identity import Difference, differences
from gguf_worker.node.tracker.registration import stage_fault
from gguf_worker.node.tracker.tracker import View
from gguf_worker_v1 import common_pb2, registration_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """A stage, and the node that serves it."""

    node: str
    stage: common_pb2.Stage
    endpoints: tuple[registration_pb2.Endpoint, ...] = ()

    @property
    def layers(self) -> tuple[int, int]:
        """[start, end)."""
        return self.stage.identity.start, self.stage.identity.end

    def __str__(self) -> str:
        return f"{self.node} (layers {self.layers[0]}:{self.layers[1]})"


@dataclass(frozen=True, slots=True, order=True)
class GroupKey:
    """All that stages of one route have in common, field by field, as text."""

    values: tuple[tuple[str, str], ...]

    def differences(self, other: GroupKey) -> list[Difference]:
        """The fields in which another group differs, with both values; this one's is what was expected."""
        expected, actual = dict(self.values), dict(other.values)
        more = dict.fromkeys(actual.keys() - expected.keys(), "missing")
        return differences({**expected, **dict(sorted(more.items()))}, actual)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Stages that fit together."""

    key: GroupKey
    members: tuple[StagePlan, ...]
    """In the order of their layers and nodes."""
    draining: frozenset[str] = field(default_factory=frozenset)
    """Nodes that take no more sessions."""

    @property
    def any_stage(self) -> common_pb2.Stage:
        """Stands for what they have in common."""
        return self.members[0].stage

    @property
    def artifact(self) -> str:
        """Its digest."""
        return self.any_stage.identity.artifact

    @property
    def model(self) -> common_pb2.Model:
        """The whole model."""
        return self.any_stage.model

    def __str__(self) -> str:
        return (
            f"{self.model.name or self.model.architecture} {self.artifact[:12]}, recipe "
            f"{recipe_id(self.any_stage.identity.recipe)}, build {self.any_stage.build.build_class}"
        )


def groups_of(view: View) -> tuple[list[Group], list[tuple[str, str]]]:
    """The groups, in an order that depends on nothing but what they are; and what was left out of them: node
    and reason."""
    members: dict[GroupKey, list[StagePlan]] = defaultdict(list)
    faults: list[tuple[str, str]] = []
    for node, registration in sorted(view.registrations.items()):
        for stage in registration.stages:
            fault = stage_fault(stage)
            if fault is not None:
                faults.append((node, fault))
            else:
                members[key_of(stage)].append(
                    StagePlan(node=node, stage=stage, endpoints=tuple(registration.endpoints))
                )
    draining = frozenset(node for node, one in view.registrations.items() if one.draining)
    groups = [
        Group(key=key, members=tuple(sorted(found, key=_order)), draining=draining)
        for key, found in sorted(members.items())
    ]
    return groups, faults


def key_of(stage: common_pb2.Stage) -> GroupKey:
    """The group that a stage belongs to."""
    build, model = stage.build, stage.model
    return GroupKey(
        (
            ("artifact", stage.identity.artifact),
            *((f"recipe.{name}", value) for name, value in sorted(dict(stage.identity.recipe).items())),
            ("build class", build.build_class),
            ("engine", build.engine),
            ("library commit", build.library_commit),
            ("model", f"{model.name} ({model.architecture}, {model.n_layer} layers)"),
            ("n_embd", str(model.n_embd)),
            ("row bytes", str(stage.capacity.row_bytes)),
        )
    )


def recipe_id(recipe: Mapping[str, str]) -> str:
    """A short name of a recipe, the same wherever it is made."""
    text = "\n".join(f"{name}={value}" for name, value in sorted(recipe.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def listed(items: Iterable[object], most: int = 8) -> str:
    """The first of many, and how many more there are."""
    texts = [str(item) for item in items]
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more} more" if more > 0 else "")


def gaps(ranges: Sequence[tuple[int, int]], n_layer: int) -> list[tuple[int, int]]:
    """The parts of [0, n_layer) that no range covers."""
    found, covered = [], 0
    for start, end in sorted(ranges):
        if start > covered:
            found.append((covered, start))
        covered = max(covered, end)
    return [*found, (covered, n_layer)] if covered < n_layer else found


def _order(plan: StagePlan) -> tuple[int, int, str, bytes]:
    return (*plan.layers, plan.node, plan.stage.SerializeToString(deterministic=True))
