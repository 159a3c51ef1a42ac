"""The text of one choice, from the steps that draw it. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from gguf_worker.gateway.stops import StopFinder
from gguf_worker.generation.generate import Step
from gguf_worker.generation.text import Utf8Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A token, and where its text begins in the choice's, in characters."""

    step: Step
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What a choice got more: whole characters, and the tokens that they came from."""

    text: str = ""
    drawn: tuple[Drawn, ...] = ()
    finish_reason: str | None = None
    """Set on the last one: `stop` or `length`."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell a client who reads text only."""
        return not self.text and self.finish_reason is None


class ChoiceText:
    """Text without broken characters, up to the first stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._characters = Utf8Stream()
        self._stops = StopFinder(stops)
        self._read = 0
        """Characters that were complete so far."""
        self._shown = 0
        self._waiting: deque[tuple[Drawn, int]] = deque()
        """Tokens whose text is held back, each with where it ends."""

    @property
    def stopped(self) -> bool:
        """Whether a stop string was met: no further step is needed."""
        return self._stops.found

    def feed(self, step: Step) -> Piece:
        """What one step adds."""
        drawn = Drawn(step=step, start=self._read)
        new = self._characters.feed(step.text_bytes)
        is_last = step.finish_reason is not None
        if is_last:
            new += self._characters.finish()
        self._read += len(new)
        if not step.end_of_generation:
            self._waiting.append((drawn, self._read))
        text = self._stops.feed(new)
        if is_last and not self.stopped:
            text += self._stops.finish()
        self._shown += len(text)
        if self.stopped:
            return Piece(text=text, drawn=self._before_the_stop(), finish_reason="stop")
        reason = None if step.finish_reason is None else str(step.finish_reason)
        return Piece(text=text, drawn=self._whole(), finish_reason=reason)

    def _whole(self) -> tuple[Drawn, ...]:
        """Tokens of which all text was shown."""
        taken = []
        while self._waiting and self._waiting[0][1] <= self._shown:
            taken.append(self._waiting.popleft()[0])
        return tuple(taken)

    def _before_the_stop(self) -> tuple[Drawn, ...]:
        """Tokens of which some text was shown."""
        return tuple(drawn for drawn, _ in self._waiting if drawn.start < self._shown)
