"""The event stream: many readers, bounded memory, nobody waits for anybody."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from gguf_worker import EventsDropped, LoadProgress, StateChanged, StderrLine, WorkerState
from gguf_worker.supervision.events import EventLog, EventReader, ObservedEvent

pytestmark = pytest.mark.anyio


def say(log: EventLog, text: str) -> None:
    log.add(StderrLine(stamp=log.stamp(1, 7), text=text))


def move(log: EventLog) -> None:
    log.add(StateChanged(stamp=log.stamp(1, 7), before=WorkerState.READY, state=WorkerState.BACKOFF))


def read_all(reader: EventReader) -> list[ObservedEvent]:
    """What can be read now."""
    found = []
    while (event := reader.next_nowait()) is not None:
        found.append(event)
    return found


def sequences(events: list[ObservedEvent]) -> list[int]:
    return [event.stamp.sequence for event in events if not isinstance(event, EventsDropped)]


async def test_readers_get_every_event_in_order_independently() -> None:
    """One that begins late or reads slowly takes nothing from the others."""
    log = EventLog()
    early = log.reader(from_start=True)
    say(log, "a")
    move(log)
    late = log.reader(from_start=False)
    say(log, "b")
    assert sequences(read_all(early)) == [1, 2, 3]
    assert sequences(read_all(late)) == [3]
    assert sequences(read_all(log.reader(from_start=True))) == [1, 2, 3]


async def test_slow_reader_is_told_how_many_it_missed() -> None:
    """What was dropped is counted, once, before what follows it."""
    log = EventLog(notable_kept=2, chatter_kept=3)
    reader = log.reader(from_start=True)
    for index in range(10):
        say(log, str(index))
    found = read_all(reader)
    assert found[0] == EventsDropped(count=7)
    assert [event.text for event in found[1:] if isinstance(event, StderrLine)] == ["7", "8", "9"]
    say(log, "10")
    assert len(read_all(reader)) == 1


async def test_flood_of_lines_pushes_no_death_out() -> None:
    """Events of the worker's life are kept apart from its chatter, and still come in their order."""
    log = EventLog(notable_kept=4, chatter_kept=4)
    reader = log.reader(from_start=True)
    move(log)
    for index in range(1000):
        say(log, str(index))
        log.add(LoadProgress(stamp=log.stamp(1, 7), phase="load", done=index, total=1000))
    move(log)
    found = read_all(reader)
    assert sum(isinstance(event, StateChanged) for event in found) == 2
    assert sequences(found) == sorted(sequences(found))
    dropped = sum(event.count for event in found if isinstance(event, EventsDropped))
    assert dropped + len(sequences(found)) == 2002


async def test_waiting_reader_is_woken_and_ends_with_the_log() -> None:
    """A reader sleeps while nothing happens and ends behind the last event."""
    log = EventLog()
    heard: list[str] = []

    async def follow() -> None:
        heard.extend(
            [event.text async for event in log.reader(from_start=True) if isinstance(event, StderrLine)]
        )

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(follow)
            await anyio.lowlevel.checkpoint()
            say(log, "first")
            await anyio.lowlevel.checkpoint()
            say(log, "last")
            log.close()
    assert heard == ["first", "last"] * 3


async def test_wait_for_passes_over_what_was_not_asked_for() -> None:
    """It gives the next event of its kind, and says so when there will be none."""
    log = EventLog()
    reader = log.reader(from_start=True)
    say(log, "a")
    say(log, "b")
    assert (await reader.wait_for(StderrLine, lambda line: line.text == "b")).stamp.sequence == 2
    log.close()
    with pytest.raises(EOFError, match="without a StateChanged"):
        await reader.wait_for(StateChanged)
