"""Cancelling a forward."""

from __future__ import annotations

import pytest

from conformance.shard import OpenShard, Rows, Shard, ShardError, Subject
from shard_engine import Recipe

LONG = Recipe(n_ctx=2048, n_batch=512, n_ubatch=512)


def check_cancelled_and_restored(shard: Shard, subject: Subject, rows: int) -> None:
    """Cancels a forward of many rows; the session, and another one, then go on as before."""
    session, other = shard.open_session(), shard.open_session()
    prompt = subject.model.prompts[1]
    shard.forward(session, 0, tokens=prompt)
    long_prompt = [3 + i % 97 for i in range(rows)]
    with pytest.raises(ShardError) as caught:
        shard.forward_cancelled(
            Rows(session=session, position=len(prompt), tokens=long_prompt, output="logits")
        )
    assert caught.value.code == "cancelled"
    assert shard.kv_cells_used() == len(prompt)
    after = shard.forward(session, len(prompt), tokens=[9], output="logits")
    shard.forward(other, 0, tokens=prompt)
    expected = shard.forward(other, len(prompt), tokens=[9], output="logits")
    assert (after.values, after.length) == (expected.values, len(prompt) + 1)


def test_cancel_stops_a_forward_and_restores_its_session(subject: Subject, open_shard: OpenShard) -> None:
    """A cancelled forward of 512 rows leaves its session and all cells as they were before."""
    # The fake engine is too fast to be caught, so it hangs until it is cancelled.
    plan = "hang@2" if subject.engine == "fake" else None
    shard = open_shard(subject, recipe=LONG, fault_plan=plan)
    check_cancelled_and_restored(shard, subject, 512)


def test_cancel_ends_a_slow_step(fake_subject: Subject, open_shard: OpenShard) -> None:
    """A slow step notices a cancel long before it is done."""
    shard = open_shard(fake_subject, fault_plan="slow:600000")
    session = shard.open_session()
    with pytest.raises(ShardError) as caught:
        shard.forward_cancelled(Rows(session=session, position=0, tokens=[5]))
    assert caught.value.code == "cancelled"
    assert shard.kv_cells_used() == 0


def test_cancel_of_a_load_opens_nothing(subject: Subject) -> None:
    """A progress callback that returns False stops the load with `cancelled`."""
    seen: list[str] = []

    def stop_at_load(phase: str, _done: int, _total: int) -> bool:
        seen.append(phase)
        return phase != "load"

    plan = "load-slow:60000" if subject.engine == "fake" else None
    with pytest.raises(ShardError) as caught:
        subject.open(subject.options(on_progress=stop_at_load, fault_plan=plan)).close()
    assert caught.value.code == "cancelled"
    assert seen[0] == "digest"


def test_load_reports_its_phases_in_order(subject: Subject, open_shard: OpenShard) -> None:
    """Digest, load and warm-up are reported, each from its start to its end, and never go back."""
    reports: list[tuple[str, int, int]] = []
    open_shard(subject, on_progress=lambda *report: reports.append(report))
    phases = list(dict.fromkeys(phase for phase, _, _ in reports))
    assert phases == ["digest", "load", "warm-up"]
    for phase in phases:
        done = [report[1] for report in reports if report[0] == phase]
        (total,) = {report[2] for report in reports if report[0] == phase}
        assert done == sorted(done)
        assert (done[0], done[-1]) == (0, total)
