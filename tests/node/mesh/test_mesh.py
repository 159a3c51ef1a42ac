"""Routes over nodes: formed, used by many at once, and filled again after every kind of loss."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from gguf_worker import Generation, RestartPolicy, Step
from gguf_worker.errors import StageLost
from gguf_worker.node.mesh import Mesh, MeshSettings, NoRoute
from gguf_worker.node.paths import Paths
from gguf_worker.node.receipts.query import ReceiptQuery, open_ledger
from gguf_worker.node.tracker.formation import Wanted
from gguf_worker.node.transport import TransportClosed
from gguf_worker_v1 import registration_pb2
from meshes import SEEDED, MeshHere, mesh_here, steps_of, undisturbed

pytestmark = pytest.mark.anyio

N_TOKENS = 24
IMPATIENT = MeshSettings(form_s=0.2, replace_s=0.5, settle_s=0.05, retry_s=0.02)


async def test_route_over_nodes_says_what_one_worker_says(tmp_path: Path) -> None:
    """Tokens, log-probabilities and the most likely candidates, to the bit; and each node has one receipt."""
    expected = await undisturbed(N_TOKENS)
    async with mesh_here(tmp_path) as here, here.mesh.route(await here.mesh.plan(Wanted())) as route:
        tokens = await route.tokenize("Hello")
        generation = route.generate(tokens, max_tokens=N_TOKENS, sampling=SEEDED)
        assert await steps_of(generation) == expected
        record = generation.record
        assert record.finish_reason == "length"
        assert [stage.kv_cells_freed for stage in record.stages] == [len(tokens) + N_TOKENS - 1] * 3
    for name in here.nodes:
        with open_ledger(tmp_path / f"{name}.sqlite") as book:
            (receipt,) = book.select(ReceiptQuery())
        assert (receipt.work_id, receipt.finish_reason) == (record.work_id, "length")
        assert receipt.rows == len(tokens) + N_TOKENS - 1


async def test_worker_that_dies_is_waited_for(tmp_path: Path) -> None:
    """Of each node in turn, in the middle of one text; nobody else has their layers."""
    expected = await undisturbed(N_TOKENS)
    async with mesh_here(tmp_path) as here, here.mesh.route(await here.mesh.plan(Wanted())) as route:
        victims = {4: "first", 9: "middle", 14: "last"}
        generation = route.generate(await route.tokenize("Hello"), max_tokens=N_TOKENS, sampling=SEEDED)
        steps = []
        async for step in generation:
            steps.append(step)
            if step.index in victims:
                here.kill_worker(victims[step.index])
        assert steps == expected
        assert [stage.replays for stage in generation.record.stages] == [1, 1, 1]


async def test_other_node_stands_in_at_once(tmp_path: Path) -> None:
    """Where the worker that died does not come back."""
    expected = await undisturbed(N_TOKENS)
    slow = RestartPolicy(max_restarts=5, backoff_initial_s=60)
    async with mesh_here(tmp_path, {"first": "first", "last": "last"}) as here:
        await here.start("middle", "middle", slow)
        plan = await here.mesh.plan(Wanted())
        await here.start("spare", "middle")
        async with here.mesh.route(plan) as route:
            generation = route.generate(await route.tokenize("Hello"), max_tokens=N_TOKENS, sampling=SEEDED)
            steps = await _killed_at(generation, 9, here, "middle")
            assert steps == expected
            assert generation.record.stages[1].label == "layers 4:8 on spare"


async def test_generations_share_what_is_found_again(tmp_path: Path) -> None:
    """Many at once: each text is its own, and the node is looked for once."""
    expected = await undisturbed(N_TOKENS)
    async with mesh_here(tmp_path) as here, here.mesh.route(await here.mesh.plan(Wanted())) as route:
        tokens = await route.tokenize("Hello")
        texts, all_run, running = [], anyio.Event(), []

        async def generate() -> None:
            steps = []
            async for step in route.generate(tokens, max_tokens=N_TOKENS, sampling=SEEDED):
                steps.append(step)
                if step.index == 3:
                    running.append(step)
                    if len(running) == 4:
                        here.kill_worker("middle")
                        all_run.set()
                    await all_run.wait()
            texts.append(steps)

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(generate)
        assert texts == [expected] * 4


async def test_node_that_is_gone_for_good_ends_the_text(tmp_path: Path) -> None:
    """Within the limit, and with a message that names it."""
    async with mesh_here(tmp_path, {"first": "first", "last": "last"}, IMPATIENT) as here:
        await here.start("middle", "middle", RestartPolicy(max_restarts=5, backoff_initial_s=60))
        async with here.mesh.route(await here.mesh.plan(Wanted())) as route:
            generation = route.generate(await route.tokenize("Hello"), max_tokens=N_TOKENS, sampling=SEEDED)
            with pytest.raises(StageLost, match="layers 4:8 was lost with middle, did not") as caught:
                await _killed_at(generation, 3, here, "middle")
            assert caught.value.code == "stage_gone"
            assert generation.record.finish_reason == "error"


async def test_missing_layers_are_named(tmp_path: Path) -> None:
    """With what is there."""
    async with mesh_here(tmp_path, {"first": "first", "last": "last"}, IMPATIENT) as here:
        with pytest.raises(NoRoute, match="layers 4:8 are held by nobody") as caught:
            await here.mesh.plan(Wanted())
        assert caught.value.code == "no_route"
        assert caught.value.refusals


class NoWay(Paths):
    """Leads nowhere."""

    async def latency_s(self, node: str, endpoints: Sequence[registration_pb2.Endpoint]) -> float:  # noqa: ARG002
        raise TransportClosed(f"{node} is out of reach", code="unreachable")


async def test_node_that_left_is_not_named_any_more(tmp_path: Path) -> None:
    """Only those that are there and cannot be reached."""
    async with mesh_here(tmp_path) as here:
        ghost = registration_pb2.Registration()
        ghost.CopyFrom(here.tracker.view().registrations["middle"])
        ghost.node = "ghost"
        await here.tracker.publish(ghost)
        mesh = Mesh(here.tracker, NoWay({}), settings=IMPATIENT)
        with pytest.raises(NoRoute, match="ghost is out of reach"):
            await mesh.plan(Wanted())
        await here.tracker.withdraw(ghost.node, ghost.instance)
        with pytest.raises(NoRoute, match="middle is out of reach") as caught:
            await mesh.plan(Wanted())
        assert "ghost" not in caught.value.message


async def test_route_waits_for_the_last_node(tmp_path: Path) -> None:
    """For as long as it is told to."""
    nodes = {"first": "first", "last": "last"}
    async with anyio.create_task_group() as tasks, mesh_here(tmp_path, nodes) as here:
        plans, planned = [], anyio.Event()

        async def plan() -> None:
            plans.append(await here.mesh.plan(Wanted()))
            planned.set()

        tasks.start_soon(plan)
        await here.start("middle", "middle")
        await planned.wait()
        assert [stage.node for stage in plans[0].stages] == ["first", "middle", "last"]


async def test_model_that_nobody_serves_is_named(tmp_path: Path) -> None:
    """No node at all."""
    async with mesh_here(tmp_path, {}, IMPATIENT) as here:
        with pytest.raises(NoRoute, match="no node serves it"):
            await here.mesh.plan(Wanted(model="nothing"))


async def test_cancelled_text_frees_every_cell(tmp_path: Path) -> None:
    """Left in the middle: each stage acknowledges, and no session is open afterwards."""
    async with mesh_here(tmp_path) as here, here.mesh.route(await here.mesh.plan(Wanted())) as route:
        tokens = await route.tokenize("Hello")
        async with route.generate(tokens, max_tokens=N_TOKENS, sampling=SEEDED) as generation:
            async for step in generation:
                if step.index == 5:
                    break
        assert generation.record.finish_reason == "cancelled"
        assert [stage.kv_cells_freed for stage in generation.record.stages] == [len(tokens) + 5] * 3
        assert _open_sessions(here) == 0


async def _killed_at(generation: Generation, index: int, here: MeshHere, name: str) -> list[Step]:
    """Its steps; a node's worker is killed after one of them."""
    steps = []
    async for step in generation:
        steps.append(step)
        if step.index == index:
            here.kill_worker(name)
    return steps


def _open_sessions(here: MeshHere) -> int:
    return sum(node.service.streams.open_sessions for node in here.nodes.values())
