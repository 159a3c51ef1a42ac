"""What `make faults-mesh` does, with small numbers; and that a promise which is not kept is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gguf_worker.node.ledger import Use
from gguf_worker.node.nats import NatsOptions, connect_nats
from gguf_worker.node.receipts.ledger import SqliteLedger
from gguf_worker.testing.mesh import __main__ as program
from gguf_worker.testing.mesh.audit import audit
from gguf_worker.testing.mesh.cases import N_TOKENS, all_cases, run_case
from gguf_worker.testing.mesh.clock import stepped_clock
from gguf_worker.testing.mesh.site import site, undisturbed
from gguf_worker.testing.mesh.storm import storm
from gguf_worker.testing.mesh.witness import Seen
from gguf_worker.testing.nats import NatsServer
from gguf_worker.work import Work

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

Note = Callable[[str], None]

SOME = (
    "kill -9 of a worker under a node, relayed",
    "every message of the relay twice",
    "cancel during prefill, direct",
)


async def test_faults_and_a_storm_leave_one_receipt_for_each_work(note: Note) -> None:
    """Some of the cases and a few works, on processes; then every ledger is compared with what was seen."""
    expected = await undisturbed(N_TOKENS)
    async with site() as here:
        for case in all_cases():
            if case.name in SOME:
                result = await run_case(case, here, expected)
                note(program.case_line(result))
                assert not result.problems
        told = await storm(here, expected, 24, seed=3)
        note(program.storm_line(told, 24, 0.0))
        assert not told.problems
        assert told.ended.total() == 24
        ledgers = {name: node.spec.ledger for name, node in here.nodes.items()}
        await here.stop_all()
        found = await audit(ledgers, here.witness.works, here.nats)
    note(program.audit_line(found, "some cases and 24 works"))
    assert not found.problems
    assert found.works >= 24


def test_cases_are_what_was_promised() -> None:
    """Each kind of failure, and each of the two ways where there are two."""
    names = [case.name for case in all_cases()]
    assert len(names) == len(set(names)) == 20
    for what in ("of a node", "of a worker", "NATS server", "partition", "reads nothing", "twice", "lease"):
        assert any(what in name for name in names)


async def test_step_of_the_wall_clock_changes_nothing() -> None:
    """Neither the text nor a lease nor a receipt."""
    assert await stepped_clock(24) == ([], 3)


async def test_audit_tells_what_does_not_fit(tmp_path: Path) -> None:
    """A work without a receipt, and one that was billed for more than was asked or less than was answered."""
    use = Use(start=0, rows=4, tokens_sampled=0, queue_us=0, compute_us=0, bytes_in=0, bytes_out=0)
    path = tmp_path / "node-a.sqlite"
    async with SqliteLedger(path, node="node-a") as ledger:
        for name in ("good", "too-much", "too-little"):
            entry = await ledger.open(Work(work_id=name), artifact="a", layers=(0, 4))
            await entry.count(use)
            await entry.close("stop")
    seen = {
        ("good", "node-a"): Seen(asked=4, answered=4),
        ("too-much", "node-a"): Seen(asked=3, answered=3),
        ("too-little", "node-a"): Seen(asked=9, answered=5),
        ("lost", "node-a"): Seen(asked=4, answered=4),
        ("refused", "node-a"): Seen(asked=4),
    }
    async with (
        NatsServer(jetstream=True) as server,
        connect_nats(NatsOptions(servers=(server.url,))) as nats,
    ):
        found = await audit({"node-a": path}, seen, nats)
    assert found.receipts == 3
    assert found.problems == (
        "('too-much', 'node-a'): 4 rows billed, 3 answered, 3 asked for",
        "('too-little', 'node-a'): 4 rows billed, 5 answered, 9 asked for",
        "('lost', 'node-a') has no receipt, and 4 rows were computed",
    )
