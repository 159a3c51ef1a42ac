"""What the worker adds to an engine."""

from __future__ import annotations

import pytest

from conformance.shard import SMALL, OpenShard, ShardError, Subject
from conformance.through_worker import WorkerShard
from gguf_worker.protocol import messages


def test_worker_computes_long_forwards_in_pieces(worker_subject: Subject, open_shard: OpenShard) -> None:
    """A forward of more rows than a step can hold gives the rows of all its pieces, in order."""
    shard = open_shard(worker_subject)
    whole, pieces = shard.open_session(), shard.open_session()
    tokens = [3 + i % 97 for i in range(3 * SMALL.n_batch + 5)]
    answer = shard.forward(whole, 0, tokens=tokens, output="logits_all")
    expected = b"".join(
        shard.forward(pieces, start, tokens=tokens[start : start + SMALL.n_batch], output="logits_all").values
        for start in range(0, len(tokens), SMALL.n_batch)
    )
    assert (answer.n_rows, answer.length, answer.kv_cells) == (len(tokens),) * 3
    assert answer.values == expected


@pytest.mark.parametrize("worker_subject", ["fake-worker"], indirect=True)
def test_worker_cancel_gives_back_the_pieces_already_computed(
    worker_subject: Subject, open_shard: OpenShard
) -> None:
    """A long forward that is cancelled after its first piece frees those cells and says how many."""
    shard = open_shard(worker_subject, fault_plan="hang@2")
    assert isinstance(shard, WorkerShard)
    session = shard.open_session()
    forward = messages.Forward(
        session=session,
        position=0,
        tokens=(5,) * (3 * SMALL.n_batch),
        output=messages.Output.LOGITS,
    )
    request_id = shard.client.send(forward)
    while shard.health().rows < SMALL.n_batch:
        pass  # Each round is an answer of the worker's control thread.
    cancelled = shard.client.request(messages.Cancel(request=request_id), messages.Cancelled)
    assert cancelled.state == "running"
    with pytest.raises(ShardError) as caught:
        shard.client.wait(request_id, messages.Result)
    assert caught.value.code == "cancelled"
    assert caught.value.fields["kv_cells_freed"] == str(SMALL.n_batch)
    assert shard.kv_cells_used() == 0
    assert shard.forward(session, 0, tokens=[5]).length == 1


@pytest.mark.parametrize("worker_subject", ["fake-worker"], indirect=True)
def test_worker_cancel_of_a_waiting_request_computes_nothing(
    worker_subject: Subject, open_shard: OpenShard
) -> None:
    """A forward that waits behind a running one is cancelled at once, and never computed."""
    shard = open_shard(worker_subject, fault_plan="hang@1")
    assert isinstance(shard, WorkerShard)
    running, waiting = shard.open_session(), shard.open_session()
    forwards = [
        messages.Forward(session=session, position=0, tokens=(5,), output=messages.Output.TOKEN)
        for session in (running, waiting)
    ]
    first = shard.client.send(forwards[0])
    while shard.health().state != "computing":
        pass  # Each round is an answer of the worker's control thread.
    second = shard.client.send(forwards[1])
    for request_id, state in ((second, "queued"), (first, "running"), (second, "unknown")):
        cancelled = shard.client.request(messages.Cancel(request=request_id), messages.Cancelled)
        assert (cancelled.request, cancelled.state) == (request_id, state)
    for request_id in (first, second):
        with pytest.raises(ShardError) as caught:
            shard.client.wait(request_id, messages.Result)
        assert (caught.value.code, caught.value.fields) == ("cancelled", {"kv_cells_freed": "0"})
    assert shard.health().rows == 0
