"""From tokens to text that never breaks inside a character."""

from __future__ import annotations

import codecs

from gguf_worker.supervision.worker import Worker


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


class TokenText:
    """The bytes of single tokens as they stand in the middle of a text.

    Detokenizers may drop the space before the first word, so each token is asked for behind an anchor and the
    anchor's own bytes are cut off. A token's bytes do not depend on the anchor, so they are kept.
    """

    def __init__(self, worker: Worker, anchor: int) -> None:
        self._worker = worker
        self._anchor = anchor
        self._anchor_bytes: int | None = None
        self._known: dict[int, bytes] = {}

    async def bytes_of(self, token: int) -> bytes:
        """The bytes that the token adds to a text."""
        if token not in self._known:
            self._known[token] = await self._ask(token)
        return self._known[token]

    async def _ask(self, token: int) -> bytes:
        if self._anchor_bytes is None:
            self._anchor_bytes = len(await self._worker.detokenize([self._anchor]))
        return (await self._worker.detokenize([self._anchor, token]))[self._anchor_bytes :]
