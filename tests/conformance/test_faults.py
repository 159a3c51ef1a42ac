"""Failures in the middle of a step leave sessions as they were."""

from __future__ import annotations

import pytest

from conformance.shard import OpenShard, ShardError, Subject


@pytest.mark.parametrize(
    ("layers", "output"),
    [((0, 6), "token"), ((0, 6), "logits_all"), ((0, 3), "hidden"), ((0, 3), "none")],
    ids=str,
)
def test_fault_nan_is_an_error_at_the_stage_that_made_it(
    fake_subject: Subject, open_shard: OpenShard, layers: tuple[int, int], output: str
) -> None:
    """A NaN that a stage computes is never passed on; the session can be computed again."""
    shard = open_shard(fake_subject, layers=layers, fault_plan="nan@2")
    session = shard.open_session()
    shard.forward(session, 0, tokens=[5, 6])
    with pytest.raises(ShardError) as caught:
        shard.forward(session, 2, tokens=[7, 8], output=output)
    assert caught.value.code == "non_finite"
    assert caught.value.fields["direction"] == "out"
    assert shard.kv_cells_used() == 2
    assert shard.forward(session, 2, tokens=[7, 8], output=output).length == 4
