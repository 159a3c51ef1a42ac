"""A supervised worker as the backend of a node."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

import anyio

from gguf_worker._schema import Buffer
from gguf_worker.errors import GgufWorkerError, LocalProtocolError, RequestError, WorkerStopped
from gguf_worker.node import codec
from gguf_worker.node.identity import build_class_of, describe_differences, differences, identity_to_pb
from gguf_worker.protocol.messages import Health, Output, Result, Sampling
from gguf_worker.supervision.events import StateChanged
from gguf_worker.supervision.lifecycle import WorkerState
from gguf_worker.supervision.session import CLOSE_DEADLINE_S, Session
from gguf_worker.supervision.supervisor import Supervisor
from gguf_worker.supervision.worker import Worker
from gguf_worker.work import Work
from gguf_worker_v1 import common_pb2

_TOLD_STATE = {
    WorkerState.STARTING: "starting",
    WorkerState.LOADING: "starting",
    WorkerState.BACKOFF: "starting",
    WorkerState.READY: "ready",
    WorkerState.DRAINING: "draining",
    WorkerState.STOPPED: "stopped",
    WorkerState.FAILED: "failed",
}
"""What the mesh hears: whether a worker starts for the first time or again is nothing to it."""


class GgufBackend:
    """Stage of a node over a supervisor, which its owner enters and leaves."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._load = common_pb2.Load()
        self._attested: tuple[Worker, common_pb2.Stage] | None = None

    # ---- what it is ----

    def describe(self) -> common_pb2.Stage:
        stage = common_pb2.Stage()
        if (worker := self._supervisor.worker) is not None:
            stage.CopyFrom(self._what_is_attested(worker))
            stage.load.CopyFrom(self._load)
        stage.state, stage.restarts = self._moment()
        return stage

    async def capacity(self) -> common_pb2.Load:
        if self._supervisor.state is WorkerState.READY:
            try:
                self._load = _load(await self._supervisor.health())
            except GgufWorkerError:
                """The last one stands; what befell the worker is its supervisor's to tell."""
        return self._load

    async def health(self) -> bool:
        if self._supervisor.state is not WorkerState.READY:
            return False
        try:
            await self._supervisor.health()
        except GgufWorkerError:
            return False
        return True

    async def wait_for_change(self, seen: common_pb2.Stage) -> None:
        events = self._supervisor.events(from_start=False)  # before the look, so that nothing is missed
        while self._moment() == (seen.state, seen.restarts):
            try:
                await events.wait_for(StateChanged)
            except EOFError:
                await anyio.sleep_forever()  # it was left, and stays as it is

    # ---- what it does ----

    async def open(self, identity: common_pb2.Identity, sampling: Sampling, work: Work) -> GgufSession:
        worker = self._ready_worker()
        self._check_identity(worker, identity)
        return GgufSession(await _opened(worker.open_session(sampling=sampling, work=work)))

    async def tokenize(self, text: bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        worker = self._ready_worker()
        return await worker.tokenize(text, add_special=add_special, parse_special=parse_special)

    async def detokenize(
        self, tokens: Sequence[int], *, remove_special: bool, unparse_special: bool
    ) -> bytes:
        worker = self._ready_worker()
        return await worker.detokenize(tokens, remove_special=remove_special, unparse_special=unparse_special)

    async def chat_template(self) -> str:
        return await self._ready_worker().chat_template()

    async def drain(self, timeout_s: float) -> bool:
        return await self._supervisor.drain(timeout_s)

    # ---- its worker ----

    def _moment(self) -> tuple[str, int]:
        """State and restarts, as the mesh hears of them."""
        return _TOLD_STATE[self._supervisor.state], self._supervisor.restarts

    def _ready_worker(self) -> Worker:
        state, worker = self._supervisor.state, self._supervisor.worker
        if state is WorkerState.READY and worker is not None:
            return worker
        if state in (WorkerState.DRAINING, WorkerState.STOPPED):
            raise _draining()
        raise RequestError(
            f"the stage is not ready: its worker is {state.value}; try again, or another node",
            code="not_ready",
            retryable=True,
            fields={"state": state.value},
        )

    def _what_is_attested(self, worker: Worker) -> common_pb2.Stage:
        """Made once for each worker: it holds one thing for its life."""
        if self._attested is None or self._attested[0] is not worker:
            self._attested = worker, attested(worker)
        return self._attested[1]

    def _check_identity(self, worker: Worker, asked: common_pb2.Identity) -> None:
        found = differences(asked, self._what_is_attested(worker).identity)
        if found:
            listed, fields = describe_differences(found)
            raise RequestError(f"the stage is another one: {listed}", code="identity", fields=fields)


class GgufSession:
    """A worker's session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._kv_cells = 0

    @property
    def position(self) -> int:
        return self._session.position

    @property
    def kv_cells(self) -> int:
        return self._kv_cells

    async def forward(
        self, *, position: int, tokens: Sequence[int] | None, hidden: Buffer | None, output: Output
    ) -> Result:
        if position != self.position:
            raise _position_error("a forward", str(self.position), position)
        try:
            result = await self._session.forward_piece(tokens=tokens, hidden=hidden, output=output)
        except LocalProtocolError as error:
            raise RequestError(error.message, code="argument", fields=error.fields) from error
        self._kv_cells += result.kv_cells
        return result

    async def trim(self, position: int) -> int:
        self._check_inside("a trim", position)
        freed = await self._session.trim(position)
        self._kv_cells = max(0, self._kv_cells - freed)
        return freed

    async def fork(self, position: int, sampling: Sampling, work: Work) -> GgufSession:
        self._check_inside("a fork", position)
        forked = await _opened(self._session.fork(position, sampling))
        forked.work = work
        return GgufSession(forked)

    async def close(self) -> int:
        with anyio.move_on_after(CLOSE_DEADLINE_S, shield=True):
            try:
                return await self._session.close()
            except GgufWorkerError:
                """A worker that is gone, or stuck and about to be, holds nothing that anybody could use."""
        return 0

    def _check_inside(self, what: str, position: int) -> None:
        if position > self.position:
            raise _position_error(what, f"0 to {self.position}", position)


def attested(worker: Worker) -> common_pb2.Stage:
    """What a worker says that it holds; without state, restarts and load."""
    identity, recipe = worker.identity, worker.identity.recipe
    stage = common_pb2.Stage(
        identity=identity_to_pb(identity),
        build=codec.build_to_pb(worker.hello.build, build_class_of(worker.hello.build)),
        model=codec.model_to_pb(worker.model),
        ownership=codec.ownership_to_pb(worker.ownership),
        memory=codec.memory_to_pb(worker.memory),
        capacity=codec.capacity_to_pb(
            worker.capacity,
            n_ctx=recipe.n_ctx,
            prefill_chunk=recipe.prefill_chunk,
            row_bytes=worker.row_bytes,
        ),
    )
    if worker.vocabulary is not None:
        stage.vocabulary.CopyFrom(codec.vocabulary_to_pb(worker.vocabulary))
    return stage


async def _opened(opening: Awaitable[Session]) -> Session:
    try:
        return await opening
    except WorkerStopped:
        raise _draining() from None


def _draining() -> RequestError:
    return RequestError(
        "the stage is being drained and takes no session; ask another node", code="draining", retryable=True
    )


def _position_error(what: str, expected: str, actual: int) -> RequestError:
    return RequestError(
        f"{what} at row {actual}, where the session takes {expected}",
        code="position",
        fields={"expected": expected, "actual": str(actual)},
    )


def _load(health: Health) -> common_pb2.Load:
    return common_pb2.Load(sessions=health.sessions, kv_cells_used=health.kv_cells_used, queued=health.queued)
