"""Longer pieces for a stage that is brought back, while other stages stand in the middle of theirs."""

from __future__ import annotations

import pytest

from gguf_worker import Output, SessionChain
from gguf_worker.errors import RequestError
from gguf_worker.generation.replay import Replay, ReplaySettings
from stand_in import Fate, Rules, StandInSource, StandInStage

pytestmark = pytest.mark.anyio

LAYERS = ((0, 6), (6, 12))
TOKENS = [2 + index for index in range(38)]


async def open_chain(rules: Rules) -> tuple[SessionChain, list[StandInSource]]:
    """Two stages that keep no rows, in pieces as long as may be: 8 rows in a prefill, 32 in a replay."""
    sources = [StandInSource(rules, layers) for layers in LAYERS]
    replay = Replay(ReplaySettings(memory_bytes=0, max_losses=9), chunk_invariant=True)
    return await SessionChain.open(sources, replay=replay), sources


async def fill(chain: SessionChain) -> None:
    """In two forwards, of 28 rows and of 10."""
    await chain.forward(TOKENS[:28], Output.NONE)
    await chain.forward(TOKENS[28:], Output.NONE)


async def test_piece_that_another_stage_stands_behind_is_not_joined_with_the_next() -> None:
    """The last stage has computed 28 rows again when the chain is told to forget all but 30; then the first
    one is lost. Its 30 rows would fit into one piece, but the last stage needs those behind the 28th."""
    expected, _ = await open_chain(Rules(chunk_invariant=True))
    await expected.forward(TOKENS[:30], Output.NONE)
    logits = (await expected.forward([5], Output.LOGITS)).logits

    fate = Fate()
    chain, (first, last) = await open_chain(Rules(fate=fate, chunk_invariant=True))
    await fill(chain)
    last.stages[-1].is_gone = True

    def refuse_behind_28_rows(kind: str, stage: StandInStage) -> None:
        sessions = last.stages[-1].sessions
        if kind == "forward" and stage in first.stages and sessions and sessions[0].position == 28:
            raise RequestError("not now", code="backend")

    fate.on_call = refuse_behind_28_rows
    with pytest.raises(RequestError, match="not now"):
        await chain.forward([5], Output.LOGITS)
    fate.on_call = lambda _kind, _stage: None
    assert [session.position for session in chain.sessions] == [28, 28]

    await chain.trim(30)
    first.stages[-1].is_gone = True
    assert (await chain.forward([5], Output.LOGITS)).logits == logits
    pieces = [[(start, rows) for start, rows, _ in source.stages[-1].pieces] for source in (first, last)]
    assert pieces == [[(0, 28), (28, 10), (30, 1)]] * 2
