"""Routes: complete, of what belongs together, certified, cheap; and why the rest is in none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest

import registered
from gguf_worker.node.tracker.formation import Formation, RoutePlan, Wanted, replacements, routes
from gguf_worker.node.tracker.tracker import View
from gguf_worker_v1 import common_pb2, registration_pb2
from registered import ARTIFACT, RECIPE, certificate, digest, registration, stage, view


def nodes_of(plan: RoutePlan) -> list[str]:
    return [one.node for one in plan.stages]


def reasons(formation: Formation) -> str:
    return "\n".join(map(str, formation.refused))


def three(**changes: Callable[[], common_pb2.Stage]) -> list[registration_pb2.Registration]:
    """Three nodes that hold a model together; `changes` are other stages, by the last letter of the node."""
    usual = {"a": (0, 10), "b": (10, 20), "c": (20, 30)}
    return [
        registration(f"node-{letter}", changes[letter]() if letter in changes else stage(*layers))
        for letter, layers in usual.items()
    ]


def test_three_nodes_are_a_route() -> None:
    """With everything that is needed to use it, and the certificate that stands for it."""
    formation = routes(view(*three()))
    (plan,) = formation.routes
    assert not formation.refused
    assert nodes_of(plan) == ["node-a", "node-b", "node-c"]
    assert [one.layers for one in plan.stages] == [(0, 10), (10, 20), (20, 30)]
    assert (plan.artifact, plan.recipe, plan.build_class) == (ARTIFACT, RECIPE, registered.BUILD_CLASS)
    assert plan.certificate == certificate().id
    assert plan.stages[1].endpoints[0].address == "node-b:7000"


def test_nothing_is_registered() -> None:
    assert routes(View()) == Formation()


def test_what_nobody_holds_is_named() -> None:
    formation = routes(view(*three()[:1], *three()[2:]))
    assert not formation.routes
    assert "layers 10:20 are held by nobody" in reasons(formation)


def test_parts_that_do_not_join_are_named() -> None:
    """Every layer is held, and yet there is no way through."""
    formation = routes(view(registration("node-a", stage(0, 12)), registration("node-b", stage(10, 30))))
    assert not formation.routes
    assert "0:12, 10:30 do not join" in reasons(formation)


DIFFERENT: Mapping[str, tuple[Callable[[], common_pb2.Stage], str]] = {
    "artifact": (
        lambda: stage(10, 20, artifact=digest("one byte differs")),
        f"artifact: expected {ARTIFACT}, actual {digest('one byte differs')}",
    ),
    "recipe": (
        lambda: stage(10, 20, recipe={**RECIPE, "n_ctx": "2048"}),
        "recipe.n_ctx: expected 4096, actual 2048",
    ),
    "unknown field": (
        lambda: stage(10, 20, recipe={**RECIPE, "new": "1"}),
        "recipe.new: expected missing, actual 1",
    ),
    "build class": (
        lambda: stage(10, 20, build_class="toy-gpu"),
        f"build class: expected {registered.BUILD_CLASS}, actual toy-gpu",
    ),
    "commit": (
        lambda: stage(10, 20, commit="7654321"),
        "library commit: expected 1234567, actual 7654321",
    ),
}


@pytest.mark.parametrize("field", DIFFERENT)
def test_node_that_differs_is_never_routed_with_others(field: str) -> None:
    """And the reason names both values, the node and its layers."""
    changed, words = DIFFERENT[field]
    formation = routes(view(*three(b=changed)))
    assert not formation.routes
    assert f"node-b (layers 10:20) differs: {words}" in reasons(formation)
    (plan,) = routes(view(*three(b=changed), registration("node-d", stage(10, 20)))).routes
    assert nodes_of(plan) == ["node-a", "node-d", "node-c"]


def test_recipe_without_a_certificate_stays_dark() -> None:
    formation = routes(view(*three(), certificates=()))
    assert not formation.routes
    assert "gguf-worker certify" in reasons(formation)
    assert "--certificate" in reasons(formation)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (certificate(exact=False), "not exact|no cut is exact"),
        (certificate(commit="7654321"), "measured with toy 7654321, and the nodes have toy 1234567"),
        (certificate(recipe={**RECIPE, "n_ctx": "2048"}), "no certificate is known"),
        (certificate(artifact=digest("another")), "no certificate is known"),
    ],
)
def test_certificate_of_something_else_lights_nothing(
    other: registration_pb2.Certificate, words: str
) -> None:
    formation = routes(view(*three(), certificates=[other]))
    assert not formation.routes
    assert any(word in reasons(formation) for word in words.split("|"))
    assert routes(view(*three(), certificates=[other, certificate()])).routes


def test_certificate_that_says_most_is_taken() -> None:
    more = certificate(number=1)
    more.batch_invariant = True
    (plan,) = routes(view(*three(), certificates=[certificate(), more])).routes
    assert plan.certificate == more.id


UNUSABLE: Mapping[str, Callable[[], common_pb2.Stage]] = {
    "draining": lambda: stage(10, 20, state="draining"),
    "all 4 sessions are taken": lambda: stage(10, 20, sessions=4),
    "all 4096 KV cells": lambda: _with_cells(stage(10, 20)),
}


def _with_cells(made: common_pb2.Stage) -> common_pb2.Stage:
    made.load.kv_cells_used = 4096
    return made


@pytest.mark.parametrize("words", UNUSABLE)
def test_stage_that_takes_no_session_is_not_used(words: str) -> None:
    """It is named where nothing else can take its place."""
    formation = routes(view(*three(b=UNUSABLE[words])))
    assert not formation.routes
    assert words in reasons(formation)
    (plan,) = routes(view(*three(b=UNUSABLE[words]), registration("node-d", stage(10, 20)))).routes
    assert nodes_of(plan) == ["node-a", "node-d", "node-c"]


def test_node_that_drains_or_cannot_be_reached_is_not_used() -> None:
    leaving = registration("node-b", stage(10, 20), draining=True)
    assert "node-b (layers 10:20): draining" in reasons(routes(view(three()[0], leaving, three()[2])))
    silent = three()[1]
    del silent.endpoints[:]
    assert "node-b (layers 10:20): without an endpoint" in reasons(
        routes(view(three()[0], silent, three()[2]))
    )
    formation = routes(view(*three()), measured={"node-b": math.inf})
    assert "node-b (layers 10:20): cannot be reached" in reasons(formation)


def test_ends_without_embedding_or_head_are_not_used() -> None:
    for letter, layers, name in (("a", (0, 10), "token_embedding"), ("c", (20, 30), "output_head")):
        lacking = stage(*layers)
        setattr(lacking.ownership, name, False)
        formation = routes(view(*three(**{letter: lambda made=lacking: made})))
        assert not formation.routes
        assert f"without the {name.replace('_', ' ')}" in reasons(formation)


def test_cheapest_route_is_taken() -> None:
    """Near before far, idle before busy, few stages before many."""
    far, near = registration("node-far", stage(0, 30)), registration("node-near", stage(0, 30))
    assert _only(far, near, measured={"node-far": 0.05, "node-near": 0.001}) == ["node-near"]
    busy = registration("node-busy", stage(0, 30, sessions=3))
    assert _only(busy, near, measured={"node-near": 0.002, "node-busy": 0.001}) == ["node-near"]
    measured = dict.fromkeys(("node-near", "node-a", "node-b", "node-c"), 0.0)
    assert _only(*three(), near, measured=measured) == ["node-near"]


def _only(*registrations: registration_pb2.Registration, measured: Mapping[str, float]) -> list[str]:
    (plan,) = routes(view(*registrations), measured=measured).routes
    return nodes_of(plan)


def test_ranges_that_overlap_are_combined() -> None:
    """Any stages that join, whoever holds more."""
    formation = routes(
        view(
            registration("node-a", stage(0, 20), stage(0, 10)),
            registration("node-b", stage(10, 30)),
            registration("node-c", stage(15, 30)),
        )
    )
    (plan,) = formation.routes
    assert nodes_of(plan) == ["node-a", "node-b"]
    assert [one.layers for one in plan.stages] == [(0, 10), (10, 30)]


def test_each_recipe_has_a_route_of_its_own() -> None:
    """Complete ones beside each other, those of the least cost first."""
    recipe = {**RECIPE, "n_ctx": "2048"}
    formation = routes(
        view(
            *three(),
            registration("node-d", stage(0, 30, recipe=recipe)),
            certificates=[certificate(), certificate(recipe=recipe)],
        )
    )
    assert [nodes_of(plan) for plan in formation.routes] == [["node-d"], ["node-a", "node-b", "node-c"]]


def test_models_are_found_by_name_and_by_digest() -> None:
    other = digest("another model")
    known = view(
        *three(),
        registration("node-d", stage(0, 30, artifact=other, name="second")),
        certificates=[certificate(), certificate(artifact=other)],
    )
    for wanted in ("second", "Second", "seco", other, other[:6], other[:6].upper()):
        assert [nodes_of(plan) for plan in routes(known, Wanted(model=wanted)).routes] == [["node-d"]]
    assert len(routes(known).routes) == 2
    formation = routes(known, Wanted(model="third"))
    assert not formation.routes
    assert "no node serves it" in reasons(formation)
    assert "second" in reasons(formation)


def test_prefix_of_two_artifacts_is_refused() -> None:
    """Nobody guesses which one is meant."""
    alike = ARTIFACT[:8] + digest("alike")[8:]
    known = view(*three(), registration("node-d", stage(0, 30, artifact=alike)))
    formation = routes(known, Wanted(model=ARTIFACT[:8]))
    assert not formation.routes
    assert "write more of it" in reasons(formation)


def test_what_was_refused_at_the_door_is_told() -> None:
    known = View(refused={"node-x": "it speaks version 2.0"})
    assert reasons(routes(known)) == "node-x: it speaks version 2.0"


def test_replacements_are_the_same_stage_on_other_nodes() -> None:
    """The best first; what differs, drains, is full or was lost is none."""
    others = [
        registration("node-d", stage(10, 20, sessions=2)),
        registration("node-e", stage(10, 20)),
        registration("node-f", stage(10, 20, recipe={**RECIPE, "n_ctx": "2048"})),
        registration("node-g", stage(10, 20), draining=True),
        registration("node-h", stage(10, 21)),
        registration("node-i", stage(10, 20, sessions=4)),
    ]
    (plan,) = routes(view(*three())).routes
    found = replacements(view(*three(), *others), plan, 1, "node-b")
    assert [one.node for one in found] == ["node-e", "node-d"]
    assert found[0].endpoints[0].address == "node-e:7000"
    far = replacements(view(*three(), *others), plan, 1, "node-b", measured={"node-e": 1.0})
    assert [one.node for one in far] == ["node-d", "node-e"]
