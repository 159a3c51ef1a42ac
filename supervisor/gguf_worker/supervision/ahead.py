"""The forward that is sent before anybody asks for it: a worker does not wait for its host between steps."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from gguf_worker._schema import Buffer
from gguf_worker.errors import GgufWorkerError, RequestError
from gguf_worker.protocol.messages import NO_DRAW, Output, Result

if TYPE_CHECKING:
    from gguf_worker.supervision.channel import Pending
    from gguf_worker.supervision.worker import Worker

AGAIN = (NO_DRAW, "busy")
"""Codes of a forward that was sent ahead in vain: it is sent once more, with its token."""


class Ahead:
    """The forwards of one session: the one that is waited for, and at most one behind it.

    That one is computed while the host still serves whoever reads the token before it. Where the token turns
    out to be the last, a row was computed for nothing: once in a generation, and not where the model ended it
    or its length was known.
    """

    def __init__(self, worker: Worker, session_id: int) -> None:
        self._worker = worker
        self._session_id = session_id
        self._sent: Pending | None = None
        self._token: int | None = None
        """The row of the one that was sent; None as long as it is not drawn."""
        self._output = Output.NONE
        """What it gives."""

    @property
    def is_there(self) -> bool:
        """Whether one was sent that nobody has asked for."""
        return self._sent is not None

    def agrees_with(self, tokens: Sequence[int] | None, hidden: Buffer | None, output: Output) -> bool:
        """Whether a forward is the one that was sent, or none was."""
        if self._sent is None:
            return True
        is_row = tokens is not None and len(tokens) == 1 and tokens[0] == self._token
        return is_row and hidden is None and output is self._output

    async def forward(
        self,
        *,
        position: int,
        tokens: Sequence[int] | None,
        hidden: Buffer | None,
        output: Output,
        more: bool,
    ) -> Result:
        """The result of a forward that `agrees_with` what was sent; with `more`, another one is sent behind
        it."""
        sent, self._sent = self._sent, None
        pending = sent or self._send(position, tokens, hidden, output)
        if more and tokens is not None and output is Output.TOKEN and self._worker.can_run_ahead:
            self._send_next(position + len(tokens))
        try:
            result = await self._worker.result_of(pending)
        except RequestError as error:
            self.leave()  # it is refused as well, for nothing was drawn
            if sent is None or error.code not in AGAIN:
                raise
            result = await self._worker.result_of(self._send(position, tokens, hidden, output))
        except BaseException:
            self.drop()
            raise
        if self._sent is not None:
            self._token = result.token
        return result

    def begin(self, *, position: int, token: int, output: Output) -> None:
        """Sends a forward of one row, which will be asked for."""
        with suppress(GgufWorkerError):  # whoever asks for it is told what is wrong
            self._sent = self._send(position, (token,), None, output)
            self._token, self._output = token, output

    def drop(self) -> bool:
        """Cancels what was sent; False where nothing was. Its row may be computed all the same."""
        return self._give_up(cancel=True)

    def leave(self) -> None:
        """The session ends: nobody waits for what was sent. A step that runs is not aborted for it, which
        would cost every other session in it as much."""
        self._give_up(cancel=False)

    def _send(
        self, position: int, tokens: Sequence[int] | None, hidden: Buffer | None, output: Output
    ) -> Pending:
        return self._worker.send_forward(
            session=self._session_id, position=position, tokens=tokens, hidden=hidden, output=output
        )

    def _send_next(self, position: int) -> None:
        with suppress(GgufWorkerError):  # a worker that takes no more says so to the one that is waited for
            self._sent = self._worker.send_after_draw(
                session=self._session_id, position=position, output=Output.TOKEN
            )
            self._token, self._output = None, Output.TOKEN

    def _give_up(self, *, cancel: bool) -> bool:
        sent, self._sent = self._sent, None
        if sent is None:
            return False
        self._worker.abandon(sent, cancel=cancel)
        return True
