"""Stop strings in a text that arrives in pieces. No I/O."""

from __future__ import annotations

from collections.abc import Sequence


class StopFinder:
    """Finds the stop string that is complete first; of several that end at the same place, the longest.

    That does not depend on where the text is cut into pieces: reading it one character at a time gives the
    same. Text is held back only as long as it may become a stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.found = False
        """Whether a stop string was there: the text has ended before it."""

    def feed(self, piece: str) -> str:
        """What is certain to belong to the text now."""
        if self.found:
            return ""
        text = self._held + piece
        cut = self._first(text)
        if cut is not None:
            self.found = True
            self._held = ""
            return text[:cut]
        certain = len(text) - self._begun(text)
        self._held = text[certain:]
        return text[:certain]

    def finish(self) -> str:
        """What was held back, where nothing comes any more."""
        held, self._held = self._held, ""
        return held

    def _first(self, text: str) -> int | None:
        """Where the text ends because of a stop string."""
        places = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        return min(places)[1] if places else None

    def _begun(self, text: str) -> int:
        """Length of the longest end of the text that a stop string begins with."""
        return max((_overlap(text, stop) for stop in self._stops), default=0)


def _overlap(text: str, stop: str) -> int:
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
