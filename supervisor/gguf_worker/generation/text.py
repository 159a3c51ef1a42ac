"""From tokens to text that never breaks inside a character."""

from __future__ import annotations

import codecs


class Utf8Stream:
    """Turns bytes that arrive in any pieces into text; an incomplete character waits for its rest."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, piece: bytes) -> str:
        """The characters that are complete now."""
        return self._decoder.decode(piece)

    def finish(self) -> str:
        """What is left: a replacement character for an incomplete one, else nothing."""
        return self._decoder.decode(b"", final=True)
