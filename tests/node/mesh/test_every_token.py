"""A text over nodes in which something is killed after every token, on processes and with small numbers; and
a stage that comes back to a node after its receipt was written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gguf_worker import RestartPolicy, ShardSpec
from gguf_worker.generation.replay import ReplaySettings
from gguf_worker.node.mesh import READY
from gguf_worker.node.receipts.query import ReceiptQuery, open_ledger
from gguf_worker.node.tracker.formation import Wanted
from gguf_worker.testing.mesh import __main__ as program
from gguf_worker.testing.mesh.audit import audit
from gguf_worker.testing.mesh.every_token import every_token
from gguf_worker.testing.mesh.site import FAKE, site
from gguf_worker.testing.mesh.streams import streamed
from meshes import RANGES, SEEDED, MeshHere, mesh_here, undisturbed

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

N_TOKENS = 12


async def test_kills_after_every_token_change_nothing(note: Callable[[str], None]) -> None:
    """Workers under nodes, and nodes whose layers another one holds, greedy and seeded: the steps of one
    worker that has the whole model, and a receipt for each work and node."""
    async with site() as here:
        sweeps = await every_token(here, ShardSpec(FAKE.model, engine="fake"), 4)
        ledgers = {name: node.spec.ledger for name, node in here.nodes.items()}
        await here.stop_all()
        found = await audit(ledgers, here.witness.works, here.nats)
    for sweep in sweeps:
        note(program.sweep_line(sweep))
        assert not sweep.problems
        assert (sweep.tokens, sweep.kills) == (4, 3)
        assert sweep.stages_brought_back >= 3
    assert not found.problems
    assert found.works == len(sweeps) == 4


async def test_streams_of_a_gateway_go_on(note: Callable[[str], None]) -> None:
    """The same as a client of OpenAI's API reads it: both endpoints."""
    async with site() as here:
        sweeps = await streamed(here, ShardSpec(FAKE.model, engine="fake"), 4)
        ledgers = {name: node.spec.ledger for name, node in here.nodes.items()}
        await here.stop_all()
        found = await audit(ledgers, here.witness.works, here.nats)
    for sweep in sweeps:
        note(program.sweep_line(sweep))
        assert not sweep.problems
        assert (sweep.tokens, sweep.kills) == (4, 3)
        assert sweep.stages_brought_back >= 3
    assert not found.problems
    assert found.works == len(sweeps) == 4


async def test_workers_of_nodes_are_killed_after_every_token(tmp_path: Path) -> None:
    """Each stage in turn, on nodes of this process."""
    expected = await undisturbed(N_TOKENS)
    restart = RestartPolicy(max_restarts=100, backoff_initial_s=0.001, backoff_max_s=0.001)
    async with mesh_here(tmp_path, {}) as here:
        names = list(RANGES)
        for name in names:
            await here.start(name, name, restart)
        plan = await here.mesh.plan(Wanted())
        async with here.mesh.route(plan, replay=ReplaySettings(max_losses=100)) as route:
            generation = route.generate(await route.tokenize("Hello"), max_tokens=N_TOKENS, sampling=SEEDED)
            steps = []
            async for step in generation:
                steps.append(step)
                if step.finish_reason is None:
                    here.kill_worker(names[step.index % 3])
            assert steps == expected
            assert [stage.replays for stage in generation.record.stages] == [4, 4, 3]
    for name in names:
        with open_ledger(tmp_path / f"{name}.sqlite") as book:
            (receipt,) = book.select(ReceiptQuery())
        assert (receipt.work_id, receipt.finish_reason) == (generation.work.work_id, "length")


async def test_node_that_wrote_its_receipt_takes_the_text_on(tmp_path: Path) -> None:
    """The middle is lost, another node stands in, and is lost when the first one has settled the work: it
    goes on there as another work of the request, with a receipt of its own."""
    expected = await undisturbed(N_TOKENS)
    stages = {"first": "first", "middle": "middle", "last": "last"}
    async with mesh_here(tmp_path, stages) as here:
        plan = await here.mesh.plan(Wanted())
        await here.start("spare", "middle")
        async with here.mesh.route(plan) as route:
            generation = route.generate(await route.tokenize("Hello"), max_tokens=N_TOKENS, sampling=SEEDED)
            steps = []
            async for step in generation:
                steps.append(step)
                if step.index == 3:
                    here.kill_worker("middle")
                if step.index == 7:
                    await is_back(here, "middle")
                    here.nodes["middle"].ledger.settle_open()
                    here.kill_worker("spare")
            assert steps == expected
            assert generation.record.stages[1].label == "layers 4:8 on middle"
    with open_ledger(tmp_path / "middle.sqlite") as book:
        receipts = book.select(ReceiptQuery())
    assert [one.finish_reason for one in receipts] == ["interrupted", "length"]
    assert [one.request_id for one in receipts] == [generation.work.request_id] * 2
    assert receipts[0].work_id == generation.work.work_id != receipts[1].work_id


async def is_back(here: MeshHere, name: str) -> None:
    """Returns when the client knows that the node's worker was started again."""
    view = here.tracker.view()
    while not any(stage.state == READY and stage.restarts == 1 for stage in view.registrations[name].stages):
        view = await here.tracker.changed(view)
