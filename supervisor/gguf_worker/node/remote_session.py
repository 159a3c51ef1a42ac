"""A session of a stage on another machine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

import anyio
from google.protobuf.message import Message

from gguf_worker._schema import Buffer
from gguf_worker.errors import (
    GgufWorkerError,
    LocalProtocolError,
    RemoteProtocolError,
    RequestError,
    RequestTimeout,
)
from gguf_worker.node import codec
from gguf_worker.node.frames import Frame
from gguf_worker.node.stage_link import StageLink
from gguf_worker.protocol.messages import Output, Result, Sampling
from gguf_worker.work import Work
from gguf_worker_v1 import stage_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTimeouts:
    """How long a client of a stage waits, in seconds. A node has limits of its own, which are shorter; these
    are for one that does not answer at all."""

    connect_s: float = 15.0
    """For a stream, on whatever way."""
    open_s: float = 30.0
    request_s: float = 150.0
    """For a forward, a trim or a text."""
    end_s: float = 10.0
    """For a close or a cancel."""
    take_back_s: float = 1.0
    """For telling a stage that nobody waits for its answer any more."""
    release_s: float = 5.0


Forker: TypeAlias = Callable[[stage_pb2.Fork, Sampling, Work], Awaitable["RemoteSession"]]


class RemoteSession:
    """One sequence's KV in a stage on another machine, as `generation.stage.StageSession` says.

    A forward that was cancelled or ran out of time is taken back at once, and may nevertheless have been
    computed. The session then forgets, before anything else, every row past the position that its user knows
    of.
    """

    def __init__(
        self,
        link: StageLink,
        opened: stage_pb2.Opened,
        *,
        sampling: Sampling,
        work: Work,
        timeouts: RemoteTimeouts,
        fork: Forker,
    ) -> None:
        self.sampling = sampling
        """How it draws tokens."""
        self.work = work
        """Whose it is."""
        self.name = opened.session
        """The node's name for it."""
        self.last_node_us = 0
        """How long the last forward was on the node, from the arrival of its frame to the departure of the
        answer."""
        self._link = link
        self._position = opened.length
        self._timeouts = timeouts
        self._fork = fork
        self._uncertain = False
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<RemoteSession {self.name[:8]} position={self.position} node={self._link.node}>"

    @property
    def position(self) -> int:
        return self._position

    @property
    def telemetry(self) -> stage_pb2.StageTelemetry | None:
        """What the stage says that the session did; None before it was closed or cancelled."""
        return self._link.telemetry

    async def forward_piece(
        self,
        *,
        tokens: Sequence[int] | None = None,
        hidden: Buffer | None = None,
        output: Output | str,
        more: bool = False,
    ) -> Result:
        del more  # a node computes, and bills, what it was asked for
        output = Output(output)
        request = _forward(self._position, tokens, output)
        self._check_open()
        await self._resolve_uncertainty()
        self._uncertain = True
        try:
            answer = await self._ask_to_compute(request, hidden)
        except RequestError:
            self._uncertain = False  # refused or undone: the session is as it was, or it is no more
            raise
        try:
            result = codec.result_from_pb(answer.message.result, answer.rows)
            self._check_result(result, output, None if tokens is None else len(tokens))
        except RemoteProtocolError as error:
            self._link.refuse(error)
        self._uncertain = False
        self._position = result.length
        self.last_node_us = answer.message.result.node_us
        return result

    def begin(self, token: int, output: Output) -> None:
        """Nothing: a node computes, and bills, what it was asked for."""

    async def trim(self, position: int) -> int:
        self._check_open()
        self._check_inside(position, "trimmed to")
        before, uncertain = self._position, self._uncertain
        # A trim that is cancelled may have happened: only the rows before `position` are certain.
        self._position, self._uncertain = position, True
        try:
            answer = await self._link.request(
                "trim", stage_pb2.Trim(position=position), self._timeouts.request_s
            )
        except RequestError:
            self._position, self._uncertain = before, uncertain
            raise
        self._uncertain = False
        return answer.message.trimmed.kv_cells_freed

    async def fork(self, position: int | None = None, sampling: Sampling | None = None) -> RemoteSession:
        position = self._position if position is None else position
        self._check_open()
        self._check_inside(position, "forked at")
        await self._resolve_uncertainty()
        return await self._fork(
            stage_pb2.Fork(session=self.name, position=position), sampling or self.sampling, self.work
        )

    async def close(self, finish_reason: str = "") -> int:
        if self._is_closed:
            return 0
        answer = await self._end("close", stage_pb2.Close(finish_reason=finish_reason))
        return answer.message.closed.kv_cells_freed

    async def cancel(self, reason: str) -> int:
        if self._is_closed:
            return 0
        answer = await self._end("cancel", stage_pb2.Cancel(reason=reason))
        return answer.message.cancelled.kv_cells_freed

    async def release(self) -> None:
        with anyio.move_on_after(self._timeouts.release_s, shield=True):
            try:
                await self.close()
            except GgufWorkerError:
                """The stream is gone, and with it the session."""

    # ---- its stream ----

    async def _ask_to_compute(self, request: stage_pb2.Forward, hidden: Buffer | None) -> Frame:
        """Whoever stops waiting lets the stage stop computing."""
        try:
            return await self._link.request("forward", request, self._timeouts.request_s, "hidden", hidden)
        except (anyio.get_cancelled_exc_class(), RequestTimeout):
            with anyio.move_on_after(self._timeouts.take_back_s, shield=True), suppress(GgufWorkerError):
                await self._link.tell("cancel", stage_pb2.Cancel(keep_session=True))
            raise

    async def _end(self, body: str, message: Message) -> Frame:
        """The session's last request; its stream ends with it."""
        self._is_closed = True
        try:
            return await self._link.request(body, message, self._timeouts.end_s)
        finally:
            with anyio.CancelScope(shield=True):
                await self._link.aclose()

    async def _resolve_uncertainty(self) -> None:
        if self._uncertain:
            await self.trim(self._position)

    def _check_open(self) -> None:
        if self._is_closed:
            raise RequestError("the session was ended; open another one", code="session_closed")

    def _check_result(self, result: Result, output: Output, n_rows: int | None) -> None:
        """Raises RemoteProtocolError for one that is not of this forward."""
        came = result.length - self._position
        if result.output is not output or came < 1 or n_rows not in (None, came):
            raise RemoteProtocolError(
                f"a result of {came} rows with output {result.output.value!r}, where "
                f"{'some' if n_rows is None else n_rows} with {output.value!r} were asked for"
            )

    def _check_inside(self, position: int, what: str) -> None:
        if not 0 <= position <= self._position:
            raise LocalProtocolError(
                f"the session has {self._position} rows and cannot be {what} {position}",
                fields={"expected": f"0 to {self._position}", "actual": str(position)},
            )


def _forward(position: int, tokens: Sequence[int] | None, output: Output) -> stage_pb2.Forward:
    try:
        return stage_pb2.Forward(position=position, tokens=tokens or (), output=codec.output_to_pb(output))
    except (TypeError, ValueError) as error:
        raise LocalProtocolError(f"forward: {error}") from error
