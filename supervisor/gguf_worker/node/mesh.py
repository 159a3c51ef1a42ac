"""Routes over the nodes of a mesh: formed from what a tracker knows, and filled again after a loss."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import anyio

from gguf_worker._tasks import plain_task_group
from gguf_worker.errors import GgufWorkerError, StageLost
from gguf_worker.generation.replay import ReplaySettings
from gguf_worker.generation.route import Route
from gguf_worker.generation.stage import Stage
from gguf_worker.logs import log_event
from gguf_worker.node.paths import Paths
from gguf_worker.node.remote_stage import RemoteStage
from gguf_worker.node.tracker.formation import (
    Formation,
    Refusal,
    RoutePlan,
    Wanted,
    replacements,
    routes,
)
from gguf_worker.node.tracker.groups import StagePlan
from gguf_worker.node.tracker.tracker import Tracker, View
from gguf_worker.node.transport import TransportClosed
from gguf_worker_v1 import registration_pb2

log = logging.getLogger(__name__)

READY = "ready"
MEASURED_AT_ONCE = 32
"""Nodes to which the way is measured at the same time."""


class NoRoute(GgufWorkerError):
    """Raised when the nodes that are known form no route of what is wanted. `refusals` say why."""

    default_code = "no_route"

    def __init__(self, message: str, refusals: Sequence[Refusal] = ()) -> None:
        super().__init__(message, retryable=True)
        self.refusals = tuple(refusals)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshSettings:
    """How long is waited, in seconds."""

    form_s: float = 10.0
    """For a first route, while nodes come."""
    replace_s: float = 20.0
    """For a node that takes the place of one that was lost, or for its return."""
    settle_s: float = 0.5
    """A node whose stage was lost is asked again when it registers another state of it; or after this, where
    it does not, because then only the way to it was lost."""
    retry_s: float = 0.25
    """Between attempts, where the tracker tells nothing new."""
    measured_s: float = 2.0
    """How long the latency of a node stands."""


class Mesh:
    """The nodes that a tracker knows, and the paths to them."""

    def __init__(
        self,
        tracker: Tracker,
        paths: Paths,
        *,
        settings: MeshSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tracker = tracker
        self.paths = paths
        self.settings = settings or MeshSettings()
        self.clock = clock
        self._measured: dict[str, _Measured] = {}

    async def plan(self, wanted: Wanted) -> RoutePlan:
        """The best route, now or as soon as there is one. Raises NoRoute, with every reason, where there is
        none in time."""
        formation: Formation | None = None
        with anyio.move_on_after(self.settings.form_s):
            while True:
                view = self.tracker.view()
                formation = await self._form(view, wanted)
                if formation.routes:
                    return formation.routes[0]
                await self.wait_for_news(view)
        unreachable = [
            Refusal(subject=node, reason=one.reason) for node, one in self._measured.items() if one.reason
        ]
        raise _no_route(wanted, [*(formation.refused if formation is not None else ()), *unreachable])

    def route(self, plan: RoutePlan, *, replay: ReplaySettings | None = None) -> Route:
        """The route of a plan, whose stages are found again after a loss."""
        sources = [MeshSource(self, plan, index) for index in range(len(plan.stages))]
        certificate = self.tracker.view().certificates.get(plan.certificate)
        is_invariant = certificate is not None and certificate.chunk_invariant
        return Route(sources, replay=replay, chunk_invariant=is_invariant)

    def stage(self, plan: StagePlan) -> RemoteStage:
        """The stage of a node. Each session has a transport of its own, by the path that is best then."""
        connect = partial(self.paths.connect, plan.node, tuple(plan.endpoints))
        return RemoteStage(plan.stage, plan.node, connect)

    async def wait_for_news(self, view: View) -> None:
        """Returns when the tracker knows something else, or when it is time to try again all the same."""
        with anyio.move_on_after(self.settings.retry_s):
            await self.tracker.changed(view)

    async def _form(self, view: View, wanted: Wanted) -> Formation:
        """Of the nodes that can be reached, by what it takes to reach them."""
        formation = routes(view, wanted)
        if not formation.routes:
            return formation
        return routes(view, wanted, measured=await self._latencies(view.registrations))

    async def _latencies(self, nodes: Mapping[str, registration_pb2.Registration]) -> dict[str, float]:
        """Seconds to each node, not older than `measured_s`; infinity where it cannot be reached."""
        self._measured = {node: one for node, one in self._measured.items() if node in nodes}
        at_once = anyio.CapacityLimiter(MEASURED_AT_ONCE)

        async def measure(registration: registration_pb2.Registration) -> None:
            async with at_once:
                self._measured[registration.node] = await self._measure(registration)

        async with plain_task_group() as tasks:
            for registration in nodes.values():
                if not self._is_measured(registration):
                    tasks.start_soon(measure, registration)
        return {node: one.latency_s for node, one in self._measured.items()}

    async def _measure(self, registration: registration_pb2.Registration) -> _Measured:
        node, latency_s, reason = registration.node, math.inf, ""
        try:
            latency_s = await self.paths.latency_s(node, registration.endpoints)
        except TransportClosed as error:
            reason = error.message
            if node not in self._measured or not self._measured[node].reason:
                log_event(log, logging.WARNING, "node_unreachable", reason, node=node, code=error.code)
        return _Measured(registration.instance, latency_s, reason, self.clock())

    def _is_measured(self, registration: registration_pb2.Registration) -> bool:
        found = self._measured.get(registration.node)
        if found is None or found.instance != registration.instance:
            return False
        return self.clock() - found.at < self.settings.measured_s


@dataclass(frozen=True, slots=True)
class _Measured:
    """What it took to reach a node."""

    instance: str
    latency_s: float
    reason: str
    """Why it cannot be; empty where it can."""
    at: float


class MeshSource:
    """One place of a route, whichever node fills it. Any number of generations may share it: what was lost is
    looked for once."""

    def __init__(self, mesh: Mesh, plan: RoutePlan, index: int) -> None:
        self._mesh = mesh
        self._plan = plan
        self._index = index
        self._held = plan.stages[index]
        self._stage: Stage | None = None
        self._lock = anyio.Lock()
        self._failed_at = -math.inf
        self._failure: StageLost | None = None

    @property
    def label(self) -> str:
        """Its layers."""
        identity = self._held.stage.identity
        return f"layers {identity.start}:{identity.end}"

    @property
    def node(self) -> str:
        """That fills it now, or did last."""
        return self._held.node

    @property
    def held(self) -> StagePlan:
        """The stage that fills it now, or did last."""
        return self._held

    async def get(self, lost: Stage | None = None) -> Stage:
        """The stage; where it was lost, another node's or the same one's when it is back. Raises StageLost
        where there was none within `replace_s`."""
        arrived = self._mesh.clock()
        async with self._lock:
            if self._failure is not None and self._failed_at > arrived:  # somebody else looked in vain
                raise self._failure.with_traceback(None)
            if self._stage is None:
                self._stage = self._mesh.stage(self._held)
            elif lost is self._stage:
                await self._replace()
            return self._stage

    async def _replace(self) -> None:
        lost = self._held
        before = self._mesh.tracker.view().registrations.get(lost.node)
        began = self._mesh.clock()
        with anyio.move_on_after(self._mesh.settings.replace_s):
            self._held = await self._find(lost, before, began)
            self._stage = self._mesh.stage(self._held)
            is_same = self._held.node == lost.node
            text = f"{self.label}: {self._held.node} {'is back' if is_same else f'stands in for {lost.node}'}"
            fields = {"node": self._held.node, "lost": lost.node, "took_s": self._mesh.clock() - began}
            log_event(log, logging.INFO, "stage_replaced", text, **fields)
            return
        self._failed_at = self._mesh.clock()
        self._failure = StageLost(
            f"{self.label} was lost with {lost.node}, did not come back within "
            f"{self._mesh.settings.replace_s:g} s, and no other node has the same (`gguf-worker nodes` shows "
            "which there are)",
            code="stage_gone",
            fields={"node": lost.node, "layers": self.label},
        )
        raise self._failure

    async def _find(
        self, lost: StagePlan, before: registration_pb2.Registration | None, began: float
    ) -> StagePlan:
        """The first stage that can stand in and can be reached."""
        while True:
            view = self._mesh.tracker.view()
            for candidate in self._candidates(view, lost, before, began):
                if await self._can_be_reached(candidate):
                    return candidate
            await self._mesh.wait_for_news(view)

    def _candidates(
        self,
        view: View,
        lost: StagePlan,
        before: registration_pb2.Registration | None,
        began: float,
    ) -> list[StagePlan]:
        """Other nodes first: they are ready. The node itself, where it may be back."""
        found = list(replacements(view, self._plan, self._index, lost.node))
        now = view.registrations.get(lost.node)
        if now is not None and not now.draining:
            is_news = before is None or _history(before) != _history(now)
            if is_news or self._mesh.clock() - began >= self._mesh.settings.settle_s:
                found += _same_stage(now, lost)
        return found

    async def _can_be_reached(self, candidate: StagePlan) -> bool:
        try:
            transport = await self._mesh.paths.connect(candidate.node, tuple(candidate.endpoints))
        except TransportClosed:
            return False
        await transport.aclose()
        return True


def _same_stage(registration: registration_pb2.Registration, lost: StagePlan) -> list[StagePlan]:
    """The stage as its node registers it now, where it is ready and the very same."""
    return [
        StagePlan(node=registration.node, stage=stage, endpoints=tuple(registration.endpoints))
        for stage in registration.stages
        if stage.state == READY
        and stage.identity == lost.stage.identity
        and stage.build.build_class == lost.stage.build.build_class
    ]


def _history(registration: registration_pb2.Registration) -> tuple[object, ...]:
    """Differs where a stage of the node is not the process that it was."""
    return (registration.instance, *((stage.restarts, stage.state) for stage in registration.stages))


def _no_route(wanted: Wanted, refusals: Sequence[Refusal]) -> NoRoute:
    reasons = "; ".join(map(str, refusals)) or "no node is known (is one started, with the same --tracker?)"
    return NoRoute(f"no route for {wanted.model or 'any model'}: {reasons}", refusals)
