"""The models of a mesh: those that its nodes form routes of."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import anyio

from gguf_worker.gateway.catalogue import Card, no_such_model
from gguf_worker.gateway.errors import ApiError, unavailable
from gguf_worker.gateway.model import ModelSettings, ServedModel
from gguf_worker.generation.replay import ReplaySettings
from gguf_worker.generation.route import Route
from gguf_worker.node.mesh import Mesh, MeshSource
from gguf_worker.node.stage_status import stage_status
from gguf_worker.node.tracker.formation import RoutePlan, Wanted, routes
from gguf_worker.node.tracker.groups import StagePlan
from gguf_worker.node.tracker.tracker import View


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    artifact: str
    model: ServedModel


class MeshModels:
    """The catalogue of a tracker. A model's route is formed when it is first asked for, and again when a node
    of it has left for good; a node that is lost for a moment is the route's own business. `replay` says how
    many losses its routes outlive."""

    def __init__(self, mesh: Mesh, settings: ModelSettings, *, replay: ReplaySettings | None = None) -> None:
        self._mesh = mesh
        self._settings = settings
        self._replay = replay
        self._opened: dict[str, _Opened] = {}
        self._since: dict[str, int] = {}
        self._opening: dict[str, anyio.Lock] = {}
        self._view: View | None = None
        self._plans: Mapping[str, RoutePlan] = {}

    def cards(self) -> Sequence[Card]:
        return [Card(id=name, created=self._since[name]) for name in self._known()]

    def open_models(self) -> Sequence[ServedModel]:
        return [opened.model for opened in self._opened.values()]

    def only(self) -> ServedModel | None:
        plans = self._known()
        return self._standing(next(iter(plans))) if len(plans) == 1 else None

    def routes_shown(self) -> Mapping[str, Sequence[Mapping[str, object]]]:
        """The stages of each model's route: of the one that is open, or else of the one that would be."""
        view = self._mesh.tracker.view()
        plans = {name: plan.stages for name, plan in self._known().items()}
        plans |= {name: _held(opened.model.route) for name, opened in self._opened.items()}
        return {name: [stage_status(stage, view) for stage in stages] for name, stages in plans.items()}

    async def get(self, name: str | None) -> ServedModel:
        plans = self._known()
        name = next(iter(plans), "") if name is None and len(plans) < 2 else name or ""
        if name not in plans:
            if name in self._since:
                raise _no_route(name)
            raise no_such_model(name, list(plans))
        return self._standing(name) or await self._opened_once(name)

    def _standing(self, name: str) -> ServedModel | None:
        opened, plan = self._opened.get(name), self._known().get(name)
        return opened.model if opened and plan and self._stands(opened, plan) else None

    async def _opened_once(self, name: str) -> ServedModel:
        """However many ask at the same time; a model whose nodes are slow holds up no other."""
        async with self._opening.setdefault(name, anyio.Lock()):
            if (model := self._standing(name)) is not None:
                return model
            plan = self._known().get(name)
            if plan is None:
                raise _no_route(name)
            self._opened[name] = opened = await self._open(name, plan)
            return opened.model

    async def _open(self, name: str, plan: RoutePlan) -> _Opened:
        plan = await self._mesh.plan(Wanted(model=plan.artifact))
        recipe = sorted(plan.recipe.items())
        model = await ServedModel.of_route(
            name,
            self._mesh.route(plan, replay=self._replay),
            identity=f"{plan.artifact} {recipe} {plan.build_class}",
            settings=self._settings,
        )
        return _Opened(artifact=plan.artifact, model=model)

    def _stands(self, opened: _Opened, plan: RoutePlan) -> bool:
        """Whether it is the same model, and every node that fills a place is known."""
        nodes = self._mesh.tracker.view().registrations
        sources = opened.model.route.sources
        are_known = all(source.node in nodes for source in sources if isinstance(source, MeshSource))
        return opened.artifact == plan.artifact and are_known

    def _known(self) -> Mapping[str, RoutePlan]:
        """The best route of each artifact, by name; where several have the same one, with their digest. One
        whose stages are full is known all the same: most often it is this gateway that fills them."""
        view = self._mesh.tracker.view()
        if view is not self._view:
            best: dict[str, RoutePlan] = {}
            for plan in routes(view, with_full=True).routes:
                best.setdefault(plan.artifact, plan)
            self._plans, self._view = _named(best.values()), view
            for name in self._plans:
                self._since.setdefault(name, int(time.time()))
        return self._plans


def _no_route(name: str) -> ApiError:
    return unavailable(f"no nodes form a route of {name!r} at this time", code="no_route")


def _held(route: Route) -> tuple[StagePlan, ...]:
    return tuple(source.held for source in route.sources if isinstance(source, MeshSource))


def _named(plans: Iterable[RoutePlan]) -> dict[str, RoutePlan]:
    named: dict[str, RoutePlan] = {}
    for plan in sorted(plans, key=lambda plan: plan.artifact):
        name = plan.model if plan.model not in named else f"{plan.model}@{plan.artifact[:12]}"
        named[name] = plan
    return named
