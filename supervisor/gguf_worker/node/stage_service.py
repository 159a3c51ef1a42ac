"""The stages of a node as sessions over streams, whatever carries them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import anyio

from gguf_worker.errors import RequestError
from gguf_worker.identity import Difference
from gguf_worker.node import codec
from gguf_worker.node.backend import BackendSession, ModelBackend
from gguf_worker.node.clock import Clock, MonotonicClock
from gguf_worker.node.identity import asked, describe_differences, differences
from gguf_worker.node.ledger import Ledger, told_to_clients
from gguf_worker.node.node_session import NodeSession
from gguf_worker.node.request_queue import ByteBudget
from gguf_worker.node.stage_stream import StageStream, StreamSettings
from gguf_worker.node.text_service import TextService
from gguf_worker.node.transport import Transport
from gguf_worker.work import Work, new_id
from gguf_worker_v1 import common_pb2, stage_pb2

MAX_IDENTITY_BYTES: Final = 16 * 1024
"""Of an open; much more than any recipe takes, and little enough for an error and a log line."""
QUEUED_BYTES: Final = 512 << 20
"""Of requests that all streams of a node have read and not begun with."""
MAX_ACCOUNT_CHARACTERS: Final = 128
MAX_TRACEPARENT_CHARACTERS: Final = 128

_ID = re.compile(r"[\x21-\x7e]{1,128}")


class StageService:
    """Serves streams of stage frames (docs/node.md). Any number of them at once, each in a task of whoever
    accepted it."""

    def __init__(
        self,
        backends: Sequence[ModelBackend],
        ledger: Ledger,
        node: str,
        *,
        settings: StreamSettings | None = None,
        clock: Clock | None = None,
        queued_bytes: int = QUEUED_BYTES,
    ) -> None:
        self.node = node
        """Its name."""
        self.text = TextService(backends)
        self.streams = 0
        """That were served since the start."""
        self._backends = tuple(backends)
        self._ledger = ledger
        self._settings = settings or StreamSettings()
        self._clock = clock or MonotonicClock()
        self._budget = ByteBudget(queued_bytes)
        self._sessions: dict[str, NodeSession] = {}

    @property
    def open_sessions(self) -> int:
        return len(self._sessions)

    async def serve(self, transport: Transport, *, account: str = "") -> None:
        """One stream, to its end. `account` is what the transport's authentication says, and stands above
        what the client says. Never raises for anything that the peer does; cancelled, it ends the session
        before it returns."""
        self.streams += 1
        stream = StageStream(
            self,
            transport,
            node=self.node,
            account=account,
            settings=self._settings,
            clock=self._clock,
            budget=self._budget,
        )
        await stream.run()

    async def open(self, request: stage_pb2.Open, *, account: str, deadline: float | None) -> NodeSession:
        """A session for a stream, which ends it. Raises RequestError, WorkSettled and WorkConflict."""
        if (size := request.identity.ByteSize()) > MAX_IDENTITY_BYTES:
            raise RequestError(
                f"an identity of {size} bytes, where {MAX_IDENTITY_BYTES} are taken", code="argument"
            )
        backend = self._find(request.identity)
        sampling = codec.sampling_from_pb(request.sampling)
        work = _work(request, account, deadline)
        source = self._source(request, backend, work.account) if request.HasField("fork") else None
        layers = request.identity.start, request.identity.end
        with told_to_clients("no session is opened"):
            entry = await self._ledger.open(work, artifact=request.identity.artifact, layers=layers)
        session: BackendSession
        try:
            if source is not None:
                backend = source.backend
                session = await source.fork(request.fork.position, sampling, work)
            else:
                session = await backend.open(asked(request.identity), sampling, work)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await entry.close("")  # nothing was computed: the work may come again, or go elsewhere
            raise
        opened = NodeSession(
            session,
            backend=backend,
            entry=entry,
            work=work,
            layers=layers,
            max_tokens=backend.describe().capacity.max_batch,
            on_end=self._forget,
        )
        self._sessions[opened.name] = opened
        return opened

    def _forget(self, session: NodeSession) -> None:
        self._sessions.pop(session.name, None)

    def _find(self, identity: common_pb2.Identity) -> ModelBackend:
        """The backend of this identity, a ready one where there are several."""
        described = [(backend, backend.describe()) for backend in self._backends]
        known = [
            _Compared(backend, stage.state == "ready", tuple(differences(identity, stage.identity)))
            for backend, stage in described
            if stage.HasField("identity")
        ]
        same = [one for one in known if not one.differences]
        if same:
            return max(same, key=lambda one: one.is_ready).backend
        if len(known) < len(described):
            raise RequestError(
                f"a stage of node {self.node} is still being loaded and may be the one; try again",
                code="not_ready",
                retryable=True,
            )
        if not known:
            raise RequestError(f"node {self.node} serves no stage; ask another node", code="identity")
        nearest = min(known, key=lambda one: len(one.differences))
        listed, fields = describe_differences(nearest.differences)
        raise RequestError(
            f"node {self.node} serves no such stage; the nearest differs in {listed}",
            code="identity",
            fields=fields,
        )

    def _source(self, request: stage_pb2.Open, backend: ModelBackend, account: str) -> NodeSession:
        """The session to be forked. Whose it is not hears nothing else than of one that is not there."""
        source = self._sessions.get(request.fork.session)
        if source is not None and source.work.account == account and _is_same(source.backend, backend):
            return source
        raise RequestError(
            "the session to be forked is not open here; open an empty one and compute its rows again",
            code="no_session",
            fields={"session": request.fork.session[:64]},
        )


@dataclass(frozen=True, slots=True)
class _Compared:
    backend: ModelBackend
    is_ready: bool
    differences: tuple[Difference, ...]


def _is_same(one: ModelBackend, other: ModelBackend) -> bool:
    return one is other or not differences(one.describe().identity, other.describe().identity)


def _work(request: stage_pb2.Open, account: str, deadline: float | None) -> Work:
    return Work(
        request_id=_id(request.request_id, "request_id"),
        work_id=_id(request.work_id, "work_id"),
        account=account or _account(request.account),
        deadline=deadline,
        attempt=request.attempt,
        traceparent=request.traceparent if len(request.traceparent) <= MAX_TRACEPARENT_CHARACTERS else "",
    )


def _account(given: str) -> str:
    if len(given) > MAX_ACCOUNT_CHARACTERS or not given.isprintable():
        raise RequestError(
            f"account must be at most {MAX_ACCOUNT_CHARACTERS} printable characters, not {given[:40]!r}",
            code="argument",
        )
    return given


def _id(given: str, name: str) -> str:
    if given and not _ID.fullmatch(given):
        raise RequestError(
            f"{name} must be 1 to 128 visible ASCII characters, not {given[:40]!r}", code="argument"
        )
    return given or new_id()
