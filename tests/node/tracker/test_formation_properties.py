"""Any set of registrations gives valid routes of the least cost, or says what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_worker.node.tracker.formation import RoutePlan, routes
from gguf_worker.node.tracker.groups import StagePlan, groups_of, key_of
from gguf_worker.node.tracker.tracker import View
from gguf_worker_v1 import common_pb2, registration_pb2
from registered import ARTIFACT, RECIPE, certificate, digest, registration, stage

N_LAYER = 4
ARTIFACTS = (ARTIFACT, digest("another"))
RECIPES = (RECIPE, {**RECIPE, "n_ctx": "2048"})
CERTIFICATES = [certificate(artifact=one, recipe=two) for one in ARTIFACTS for two in RECIPES]
LATENCIES = (0.0, 0.001, 0.005)
NODES = "abcdef"


@st.composite
def _stages(draw: st.DrawFn) -> common_pb2.Stage:
    """Mostly stages that fit together; some of another kind, some that contradict themselves."""
    made = stage(
        draw(st.integers(0, N_LAYER)),
        draw(st.integers(0, N_LAYER + 1)),
        artifact=draw(st.sampled_from((*ARTIFACTS, ARTIFACT, ARTIFACT, "garbage"))),
        recipe=draw(st.sampled_from((RECIPE, *RECIPES, {}))),
        build_class=draw(st.sampled_from(("one", "one", "one", "two"))),
        n_layer=N_LAYER,
        state=draw(st.sampled_from(("ready", "ready", "ready", "draining", "starting"))),
        sessions=draw(st.integers(0, 3)),
        max_sessions=3,
    )
    if draw(st.integers(0, 9)) == 0:
        made.ownership.token_embedding = not made.ownership.token_embedding
    if draw(st.integers(0, 9)) == 0:
        made.ownership.owned_layers += 1
    return made


@st.composite
def _views(draw: st.DrawFn) -> View:
    registrations = {}
    for name in NODES[: draw(st.integers(0, 6))]:
        registrations[name] = registration(name, draining=draw(st.integers(0, 9)) == 0)
        registrations[name].stages.extend(draw(st.lists(_stages(), max_size=3)))
    known = draw(st.sets(st.sampled_from(range(len(CERTIFICATES)))))
    return View(
        registrations=registrations,
        certificates={CERTIFICATES[index].id: CERTIFICATES[index] for index in known},
    )


_measured = st.dictionaries(st.sampled_from(NODES), st.sampled_from(LATENCIES))


@given(_views(), _measured)
@settings(max_examples=80, deadline=None)
def test_any_registrations_give_valid_routes_or_reasons(view: View, measured: dict[str, float]) -> None:
    """Every route is valid; every group without one, and every stage that cannot be read, has a reason."""
    formation = routes(view, measured=measured)
    for plan in formation.routes:
        _check_valid(plan, view)
    groups, faults = groups_of(view)
    routed = {key_of(plan.stages[0].stage) for plan in formation.routes}
    subjects = {refusal.subject for refusal in formation.refused}
    assert len(routed) == len(formation.routes)
    assert all(group.key in routed or str(group) in subjects for group in groups)
    assert {node for node, _ in faults} <= subjects


def _check_valid(plan: RoutePlan, view: View) -> None:
    stages = [one.stage for one in plan.stages]
    assert stages[0].identity.start == 0
    assert stages[0].ownership.token_embedding
    assert stages[-1].identity.end == stages[-1].model.n_layer
    assert stages[-1].ownership.output_head
    assert all(one.identity.end == two.identity.start for one, two in pairwise(stages))
    assert len({key_of(one) for one in stages}) == 1
    assert {one.identity.artifact for one in stages} == {plan.artifact}
    assert all(dict(one.identity.recipe) == plan.recipe for one in stages)
    assert {one.build.build_class for one in stages} == {plan.build_class}
    for one in plan.stages:
        node = view.registrations[one.node]
        assert one.stage in node.stages
        assert not node.draining
        assert one.stage.state == "ready"
        assert one.stage.load.sessions < one.stage.capacity.max_sessions
    known = view.certificates[plan.certificate]
    assert known.exact
    assert (known.artifact, dict(known.recipe)) == (plan.artifact, plan.recipe)


@given(_views(), _measured)
@settings(max_examples=80, deadline=None)
def test_route_has_the_least_cost_of_all(view: View, measured: dict[str, float]) -> None:
    """Compared with every path that there is, one stage at a time, by the plan's own costs."""
    certified = View(registrations=view.registrations, certificates={one.id: one for one in CERTIFICATES})
    formation = routes(certified, measured=measured)
    plans = {key_of(plan.stages[0].stage): plan for plan in formation.routes}
    groups, _ = groups_of(certified)
    for group in groups:
        usable = [one for one in group.members if _is_usable(one, certified)]
        costs = [sum(_cost_us(one, measured) for one in path) for path in _paths(usable, 0)]
        plan = plans.get(group.key)
        assert (plan is None) == (not costs)
        assert plan is None or plan.cost_us == min(costs)


def _cost_us(one: StagePlan, measured: dict[str, float]) -> int:
    """What a stage costs, in the test's own words."""
    latency_us = round(measured.get(one.node, 0.002) * 1e6)
    return 1000 + latency_us + 20_000 * one.stage.load.sessions // one.stage.capacity.max_sessions


def _is_usable(one: StagePlan, view: View) -> bool:
    stage = one.stage
    return (
        not view.registrations[one.node].draining
        and stage.state == "ready"
        and stage.load.sessions < stage.capacity.max_sessions
        and (stage.identity.start > 0 or stage.ownership.token_embedding)
        and (stage.identity.end < N_LAYER or stage.ownership.output_head)
    )


def _paths(stages: Sequence[StagePlan], start: int) -> Iterator[tuple[StagePlan, ...]]:
    if start == N_LAYER:
        yield ()
        return
    for one in stages:
        if one.layers[0] == start:
            yield from ((one, *rest) for rest in _paths(stages, one.layers[1]))


@given(_views(), _measured, st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_order_does_not_matter(view: View, measured: dict[str, float], random: Random) -> None:
    """Of nodes, of stages within a node, and of certificates."""
    shuffled = View(
        registrations={
            name: _shuffled(view.registrations[name], random)
            for name in _any_order(view.registrations, random)
        },
        certificates={name: view.certificates[name] for name in _any_order(view.certificates, random)},
    )
    one, two = routes(view, measured=measured), routes(shuffled, measured=measured)
    assert one.routes == two.routes
    assert sorted(map(str, one.refused)) == sorted(map(str, two.refused))


def _any_order(names: Iterable[str], random: Random) -> list[str]:
    return sorted(names, key=lambda _: random.random())


def _shuffled(one: registration_pb2.Registration, random: Random) -> registration_pb2.Registration:
    copy = registration_pb2.Registration()
    copy.CopyFrom(one)
    del copy.stages[:]
    copy.stages.extend(sorted(one.stages, key=lambda _: random.random()))
    return copy


@given(_views(), st.lists(_stages(), max_size=4), st.booleans())
@settings(max_examples=50, deadline=None)
def test_another_node_never_ends_a_route(view: View, stages: list[common_pb2.Stage], draining: bool) -> None:
    """Whatever it says: each group that has a route keeps one."""
    more = registration("newcomer", draining=draining)
    more.stages.extend(stages)
    wider = View(registrations={**view.registrations, "newcomer": more}, certificates=view.certificates)
    before = {key_of(plan.stages[0].stage): plan for plan in routes(view).routes}
    after = {key_of(plan.stages[0].stage): plan for plan in routes(wider).routes}
    assert before.keys() <= after.keys()
    assert all(after[key].cost_us <= plan.cost_us for key, plan in before.items())
