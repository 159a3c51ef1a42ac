"""What readers of a board get, and what is kept for them."""

from __future__ import annotations

import itertools
import json

import anyio
import pytest

from gguf_worker.status_page.board import SAMPLES_KEPT, Board, Seen
from gguf_worker.status_page.rates import Rates
from gguf_worker.status_page.ring import Ring
from watching import FOREVER_S, Told


def test_ring_gives_what_is_still_there() -> None:
    """From any position: none from the end on, all that is kept from one that is long gone."""
    ring: Ring[int] = Ring(3)
    for item in range(5):
        ring.add(item)
    assert [ring.since(position) for position in range(6)] == [[2, 3, 4]] * 3 + [[3, 4], [4], []]
    assert Ring[int](0).since(0) == []


def test_rate_is_that_of_a_period() -> None:
    """A look that is too early counts with the next one, and a count that fell has begun anew."""
    rates = Rates(1.0)
    looks = [(0.0, 0), (1.0, 10), (1.2, 12), (2.0, 20), (3.0, 5), (4.0, 8)]
    samples = [rates.take(count, now=now, time=1e9 + now) for now, count in looks]
    assert [sample and sample.per_s for sample in samples] == [None, 10.0, None, 10.0, 0.0, 3.0]


@pytest.mark.anyio
async def test_reader_gets_all_and_then_what_is_new_to_it() -> None:
    """However late it comes; the state is the newest one each time."""
    told = Told()
    moments = itertools.count()
    board = Board(told, period_s=1.0, clock=lambda: next(moments), wall_clock=lambda: 0.0)
    async with board.running():
        assert await board.wait_news(Seen())
        told.generations.add({"tokens": 1})
        for _ in range(3):
            await told.look_again()
        text, seen = board.news(Seen())
        told.generations.add({"tokens": 2})
        told.change()
        assert await board.wait_news(seen)
        news, now = board.news(seen)
    first, second = json.loads(text), json.loads(news)
    assert first["generations"] == [{"tokens": 1}]
    assert second["generations"] == [{"tokens": 2}]
    assert second["status"]["look"] > first["status"]["look"]
    assert len(first["samples"]) == seen.samples
    assert len(second["samples"]) == now.samples - seen.samples
    assert "\n" not in text


@pytest.mark.anyio
async def test_history_is_bounded() -> None:
    """By samples, however long it goes on."""
    moments = itertools.count()
    board = Board(Told(), period_s=1.0, clock=lambda: next(moments), wall_clock=lambda: 0.0)
    for _ in range(SAMPLES_KEPT + 50):
        await board.look()
    text, seen = board.news(Seen())
    assert len(json.loads(text)["samples"]) == SAMPLES_KEPT
    assert seen.samples == SAMPLES_KEPT + 49


@pytest.mark.anyio
async def test_end_is_seen_by_everybody() -> None:
    """After one more look, which shows how it was at the end."""
    told = Told()
    board = Board(told, period_s=FOREVER_S)
    heard: list[int] = []

    async def read() -> None:
        seen = Seen()
        while await board.wait_news(seen):
            text, seen = board.news(seen)
            heard.append(json.loads(text)["status"]["look"])

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            async with board.running():
                await told.looked.wait()
    assert heard[-1] == told.looks
    assert not await board.wait_news(Seen(looks=told.looks))


@pytest.mark.anyio
async def test_page_that_cannot_be_made_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It is told once in the log, and made again when it can be."""
    told = Told(broken=object())
    board = Board(told, period_s=FOREVER_S)
    async with board.running():
        await told.look_again()
        await told.look_again()
        told.status = {"broken": False}
        told.change()
        with anyio.fail_after(20):
            assert await board.wait_news(Seen())
        assert json.loads(board.news(Seen())[0])["status"]["broken"] is False
    assert [record.message for record in caplog.records if "status page" in record.message] == [
        "the status page could not be made: TypeError: Object of type object is not JSON serializable"
    ]
