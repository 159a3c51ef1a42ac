"""One look a second at the subject, however many watch, and the history that a page begins with."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import anyio

from gguf_worker._tasks import plain_task_group
from gguf_worker.logs import log_event
from gguf_worker.status_page.rates import Rates, Sample
from gguf_worker.status_page.ring import Ring
from gguf_worker.status_page.subject import Subject

log = logging.getLogger(__name__)

PERIOD_S = 1.0
"""Between two looks."""
SETTLE_S = 0.1
"""Changes that come within it are one."""
SAMPLES_KEPT = 600
"""Ten minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a reader has got so far."""

    looks: int = 0
    samples: int = 0
    generations: int = 0


class Board:
    """The newest state of a subject, for any number of readers. Nothing is kept for any of them: each tells
    what it has seen, and gets what is new to it together with the state of now."""

    def __init__(
        self,
        subject: Subject,
        *,
        period_s: float = PERIOD_S,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.watchers = 0
        self._subject = subject
        self._period_s = period_s
        self._clock = clock
        self._wall_clock = wall_clock
        self._rates = Rates(period_s)
        self._samples: Ring[Sample] = Ring(SAMPLES_KEPT)
        self._looks = 0
        self._state = ""
        self._has_failed = False
        self._has_ended = False
        self._changed = anyio.Event()

    # ---- its life ----

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Looks at the subject while this is open. Leaving it looks once more; then every reader has come to
        the end."""
        async with plain_task_group() as tasks:
            tasks.start_soon(self._keep_looking, name="status page")
            try:
                yield
                await self._try_to_look()
            finally:
                self._has_ended = True
                self._tell()
                tasks.cancel_scope.cancel()

    async def _keep_looking(self) -> None:
        while True:
            changed = self._subject.next_change()
            await self._try_to_look()
            with anyio.move_on_after(self._period_s):
                await changed.wait()
                await anyio.sleep(SETTLE_S)

    async def _try_to_look(self) -> None:
        """A page that cannot be made is no reason to end what it is about."""
        try:
            await self.look()
        except Exception as error:
            if not self._has_failed:  # said once
                text = f"the status page could not be made: {type(error).__name__}: {error}"
                log_event(log, logging.ERROR, "page_failed", text)
            self._has_failed = True

    async def look(self) -> None:
        """One more look, which every reader is told of."""
        picture = await self._subject.look()
        sample = self._rates.take(picture.done, now=self._clock(), time=self._wall_clock())
        if sample is not None:
            self._samples.add(sample)
        # In ASCII, because the name of a model's file may be no text.
        self._state = json.dumps({"unit": picture.unit, "period_s": self._period_s, "status": picture.status})
        self._looks += 1
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    # ---- for readers ----

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Counts a reader."""
        self.watchers += 1
        try:
            yield
        finally:
            self.watchers -= 1

    async def wait_news(self, seen: Seen) -> bool:
        """Returns when there has been another look; False where there will be none."""
        while self._looks == seen.looks:
            if self._has_ended:
                return False
            await self._changed.wait()
        return True

    def news(self, seen: Seen) -> tuple[str, Seen]:
        """The state of now with what is new to a reader, as JSON of one line; and what it has seen then."""
        generations = self._subject.generations
        samples = [sample.to_list() for sample in self._samples.since(seen.samples)]
        news = {"samples": samples, "generations": generations.since(seen.generations)}
        text = f"{self._state[:-1]}, {json.dumps(news)[1:]}"
        return text, Seen(looks=self._looks, samples=self._samples.end, generations=generations.end)
