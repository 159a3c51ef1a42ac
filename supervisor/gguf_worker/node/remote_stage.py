"""A stage on another machine, as generations see it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio
from google.protobuf.message import Message

from gguf_worker.errors import RemoteProtocolError, RequestTimeout, StageLost
from gguf_worker.node import codec
from gguf_worker.node.identity import asked
from gguf_worker.node.remote_errors import loss
from gguf_worker.node.remote_session import RemoteSession, RemoteTimeouts
from gguf_worker.node.stage_link import StageLink
from gguf_worker.node.transport import Transport, TransportClosed
from gguf_worker.protocol.limits import DEFAULT_MAX_FRAME_BYTES
from gguf_worker.protocol.messages import Capacity, Model, Output, Sampling, Vocabulary
from gguf_worker.protocol.pieces import most_rows
from gguf_worker.work import Work
from gguf_worker_v1 import common_pb2, stage_pb2


class RemoteStage:
    """A stage of a node, as `generation.stage.Stage` says. Each session has a stream of its own, and each
    text too; there is nothing to be closed but the sessions.

    Errors of the way and of the worker behind it are StageLost, with the fields `node` and `code`.
    """

    def __init__(
        self,
        stage: common_pb2.Stage,
        node: str,
        connect: Callable[[], Awaitable[Transport]],
        *,
        timeouts: RemoteTimeouts | None = None,
    ) -> None:
        """`stage` is what the node registered; `connect` begins a stream to it, on whatever way. Raises
        RemoteProtocolError where it is none that could be asked for anything."""
        self.node = node
        """Its name."""
        self.described = stage
        """As it was registered."""
        self._connect = connect
        self._timeouts = timeouts or RemoteTimeouts()
        sizes = stage.capacity
        if not (sizes.n_ctx and sizes.prefill_chunk and sizes.max_batch and sizes.row_bytes):
            raise RemoteProtocolError(
                f"node {node} registered a stage whose context, prefill chunk, batch or row bytes are 0; "
                "restart it, or ask another node"
            )
        self._identity = asked(stage.identity)
        self._model = codec.model_from_pb(stage.model)
        self._vocabulary = (
            codec.vocabulary_from_pb(stage.vocabulary) if stage.HasField("vocabulary") else None
        )
        self._max_frame_bytes = DEFAULT_MAX_FRAME_BYTES

    def __repr__(self) -> str:
        return f"<RemoteStage {self.label}>"

    # ---- what it is ----

    @property
    def label(self) -> str:
        return "layers {}:{} on {}".format(*self.layers, self.node)

    @property
    def layers(self) -> tuple[int, int]:
        return self._identity.start, self._identity.end

    @property
    def model(self) -> Model:
        return self._model

    @property
    def vocabulary(self) -> Vocabulary | None:
        return self._vocabulary

    @property
    def capacity(self) -> Capacity:
        """How much it can do at once, by all of its clients."""
        return codec.capacity_from_pb(self.described.capacity)

    @property
    def n_ctx(self) -> int:
        return self.described.capacity.n_ctx

    @property
    def prefill_chunk(self) -> int:
        return self.described.capacity.prefill_chunk

    @property
    def can_trim(self) -> bool:
        return self.described.capacity.can_trim

    def max_rows(self, output: Output) -> int:
        """As a worker's; the node's own limit of a frame is known from the first session on."""
        capacity = self.described.capacity
        return most_rows(
            output,
            model=self._model,
            row_bytes=capacity.row_bytes,
            prefill_chunk=capacity.prefill_chunk,
            max_batch=capacity.max_batch,
            max_frame_bytes=self._max_frame_bytes,
        )

    # ---- sessions ----

    async def open_session(
        self, *, sampling: Sampling | None = None, work: Work | None = None
    ) -> RemoteSession:
        return await self._open(None, sampling or Sampling(), work or Work())

    async def _open(self, fork: stage_pb2.Fork | None, sampling: Sampling, work: Work) -> RemoteSession:
        remaining_s = work.remaining_s()
        if remaining_s == 0:
            raise RequestTimeout("the deadline passed before a session was opened", code="deadline")
        request = stage_pb2.Open(
            identity=self._identity,
            sampling=codec.sampling_to_pb(sampling),
            request_id=work.request_id,
            work_id=work.work_id,
            account=work.account,
            deadline_ms=0 if remaining_s is None else max(1, round(remaining_s * 1000)),
            fork=fork,
            traceparent=work.traceparent,
            attempt=work.attempt,
        )
        link = await self._link()
        try:
            answer = await link.request("open", request, self._timeouts.open_s)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await link.aclose()
            raise
        self._max_frame_bytes = link.max_frame_bytes
        return RemoteSession(
            link,
            answer.message.opened,
            sampling=sampling,
            work=work,
            timeouts=self._timeouts,
            fork=self._open,
        )

    # ---- text ----

    async def tokenize(
        self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        request = stage_pb2.Tokenize(
            text=text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text,
            add_special=add_special,
            parse_special=parse_special,
            artifact=self._identity.artifact,
        )
        return list((await self._ask_once("tokenize", request)).tokenized.tokens)

    async def detokenize(
        self, tokens: Sequence[int], *, remove_special: bool = False, unparse_special: bool = False
    ) -> bytes:
        request = stage_pb2.Detokenize(
            tokens=tokens,
            remove_special=remove_special,
            unparse_special=unparse_special,
            artifact=self._identity.artifact,
        )
        return (await self._ask_once("detokenize", request)).detokenized.text

    async def chat_template(self) -> str:
        request = stage_pb2.GetChatTemplate(artifact=self._identity.artifact)
        return (await self._ask_once("get_chat_template", request)).chat_template.text

    # ---- streams ----

    async def _ask_once(self, body: str, message: Message) -> stage_pb2.StageFrame:
        link = await self._link()
        try:
            return (await link.request(body, message, self._timeouts.request_s)).message
        finally:
            with anyio.CancelScope(shield=True):
                await link.aclose()

    async def _link(self) -> StageLink:
        """A stream that was begun."""
        with anyio.move_on_after(self._timeouts.connect_s):
            try:
                transport = await self._connect()
            except TransportClosed as error:
                raise loss(error, self.node) from error
            link = StageLink(transport, node=self.node)
            try:
                await link.greet()
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await link.aclose()
                raise
            return link
        raise StageLost(
            f"node {self.node} could not be reached within {self._timeouts.connect_s:g} s",
            retryable=True,
            fields={"node": self.node, "code": "unreachable"},
        )
