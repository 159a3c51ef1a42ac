"""A stage that is found again on a node which has written the receipt of its work."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gguf_worker import Route, Work
from gguf_worker.errors import RequestError
from stand_in import Rules, StandInSource, StandInStage

pytestmark = pytest.mark.anyio

PROMPT = [5, 6, 7]
N_TOKENS = 12


def sources() -> list[StandInSource]:
    rules = Rules()
    return [StandInSource(rules, layers) for layers in pairwise((0, 4, 8, 12))]


async def test_place_goes_on_as_another_work_of_the_request() -> None:
    """It was lost there before, longer ago than a receipt waits: nobody who reads the text notices."""
    expected = [step async for step in Route(sources()).generate(PROMPT, max_tokens=N_TOKENS)]
    struck = sources()
    refusals = [RequestError("it has its receipt", code="work_settled")]

    def strike(kind: str, stage: StandInStage) -> None:
        if stage in struck[1].stages[:1] and kind == "forward" and len(stage.pieces) == 3:
            stage.is_gone = True
        if stage in struck[1].stages[1:] and kind == "open" and refusals:
            raise refusals.pop()

    struck[0].rules.fate.on_call = strike
    work = Work(account="somebody")
    generation = Route(struck).generate(PROMPT, max_tokens=N_TOKENS, work=work)
    assert [step async for step in generation] == expected
    assert not refusals
    (before,), (after,) = (stage.works for stage in struck[1].stages)
    assert before == work
    assert after is not None
    assert after.work_id != work.work_id
    assert (after.request_id, after.account) == (work.request_id, work.account)
    assert generation.record.work_id == work.work_id


async def test_work_that_was_settled_before_it_began_is_refused() -> None:
    """Whoever asks for a work that has its receipt is told so: nothing goes on here."""
    route_sources = sources()

    def refuse(kind: str, _: StandInStage) -> None:
        if kind == "open":
            raise RequestError("it has its receipt", code="work_settled")

    route_sources[0].rules.fate.on_call = refuse
    generation = Route(route_sources).generate(PROMPT, max_tokens=N_TOKENS)
    with pytest.raises(RequestError) as caught:
        await anext(aiter(generation))
    assert caught.value.code == "work_settled"
