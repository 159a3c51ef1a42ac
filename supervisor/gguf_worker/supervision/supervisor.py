"""Supervises one worker: from its spawn until it is released."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

import anyio
from anyio.abc import TaskGroup

from gguf_worker.errors import (
    ExecutableNotFound,
    GgufWorkerError,
    IdentityMismatch,
    LoadRejected,
    LocalProtocolError,
    PinMismatch,
    RequestError,
    SpawnFailed,
    StartupError,
    VersionMismatch,
    WorkerDied,
)
from gguf_worker.process.exit import ExitCause, ExitReport
from gguf_worker.process.release import ReleaseReport
from gguf_worker.protocol.messages import Loaded
from gguf_worker.supervision.attest import check_attested
from gguf_worker.supervision.channel import ProgressCallback
from gguf_worker.supervision.life import Life, WorkerCommand
from gguf_worker.supervision.lifecycle import TRANSITIONS, Event, Lifecycle, WorkerState
from gguf_worker.supervision.settings import WorkerSettings
from gguf_worker.supervision.spec import ShardSpec
from gguf_worker.supervision.watched import watched_request
from gguf_worker.supervision.worker import Worker


class Supervisor:
    """An async context manager around one worker:

        async with Supervisor(spec) as worker:
            session = await worker.open_session()

    Entering it gives a ready Worker, whose attested identity equals the specification, or raises
    StartupError (or one of its kinds) with nothing left behind. Leaving it stops the worker by the ladder;
    `exit` and `release` then say how. A worker that dies in between fails every call with WorkerDied; the
    body goes on.

    One task owns the process for all of its life and is shielded: it is never cancelled in the middle of a
    clean-up, only told to stop.
    """

    def __init__(
        self,
        spec: ShardSpec,
        *,
        settings: WorkerSettings | None = None,
        on_progress: ProgressCallback | None = None,
        on_stderr: Callable[[str], None] | None = None,
    ) -> None:
        self.spec = spec
        self.settings = settings or WorkerSettings()
        self._on_progress = on_progress
        self._on_stderr = on_stderr
        self._lifecycle = Lifecycle()
        self._life: Life | None = None
        self._worker: Worker | None = None
        self._failure: GgufWorkerError | None = None
        self._settled = anyio.Event()
        self._tasks: TaskGroup | None = None
        self._owner_scope: anyio.CancelScope

    def __repr__(self) -> str:
        identity = self._worker.identity if self._worker is not None else None
        return f"<Supervisor {self.state.value} pid={self.pid} identity={identity} restarts={self.restarts}>"

    @property
    def state(self) -> WorkerState:
        """Where the worker is."""
        return self._lifecycle.state

    @property
    def pid(self) -> int | None:
        """The process id; None before the spawn."""
        return self._life.pid if self._life is not None else None

    @property
    def restarts(self) -> int:
        """How often another process took the place of one that died."""
        return 0

    @property
    def worker(self) -> Worker | None:
        """The worker, once it is ready."""
        return self._worker

    @property
    def exit(self) -> ExitReport | None:
        """How the process ended; None while it lives."""
        return self._life.exit if self._life is not None else None

    @property
    def release(self) -> ReleaseReport | None:
        """What was given back; None until the context is left."""
        return self._life.release if self._life is not None else None

    async def __aenter__(self) -> Worker:
        if self._tasks is not None:
            raise RuntimeError("a Supervisor is entered once; make another one for another worker")
        self._owner_scope = anyio.CancelScope(shield=True)
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        try:
            self._tasks.start_soon(self._own, name="worker owner")
            await self._settled.wait()
        except BaseException:
            await self._leave()
            raise
        if self._worker is None:
            await self._leave()
            assert self._failure is not None
            raise self._failure
        return self._worker

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave()

    async def _leave(self) -> None:
        assert self._tasks is not None
        if (self.state, Event.STOP) in TRANSITIONS:
            self._lifecycle.apply(Event.STOP)
        self._owner_scope.cancel()
        await self._tasks.__aexit__(None, None, None)

    # ---- the owner task ----

    async def _own(self) -> None:
        with self._owner_scope:
            try:
                await self._live()
            finally:
                self._settled.set()
        if self.state is WorkerState.DRAINING:
            self._lifecycle.apply(Event.ENDED)

    async def _live(self) -> None:
        """One process, from its spawn to its release."""
        command = WorkerCommand(engine=self.spec.engine, fault_plan=self.spec.fault_plan)
        self._life = life = Life(command, self.settings, on_stderr=self._on_stderr, on_end=self._on_end)
        try:
            async with life:
                self._lifecycle.apply(Event.HELLO)
                self._worker = await self._load(life)
                self._lifecycle.apply(Event.LOADED)
                if life.ended.is_set():  # between its answer and this task's turn
                    self._on_end()
                self._settled.set()
                await life.ended.wait()
        except StartupError as error:
            error.exit = life.exit
            self._failure = error
            if isinstance(error, NEVER_RETRIED):
                self._lifecycle.apply(Event.REFUSED)
            else:
                self._give_up()

    async def _load(self, life: Life) -> Worker:
        started = time.monotonic()
        try:
            loaded = await watched_request(
                life,
                self.spec.load_request(),
                Loaded,
                stall_s=self.settings.load_stall_timeout_s,
                on_progress=self._on_progress,
            )
            check_attested(self.spec, loaded)
        except WorkerDied as death:
            raise StartupError.from_death(death) from death
        except (RequestError, LocalProtocolError) as refusal:
            life.blame(ExitCause.LOAD_REJECTED, refusal.message)
            raise _load_rejected(refusal) from refusal
        except IdentityMismatch as mismatch:
            life.blame(ExitCause.IDENTITY_MISMATCH, mismatch.message)
            raise
        return Worker(life, loaded, self._lifecycle, self.settings, time.monotonic() - started)

    def _on_end(self) -> None:
        if self.state is WorkerState.READY:
            self._give_up()

    def _give_up(self) -> None:
        """The process died. Without a restart policy there is one thing to decide."""
        self._lifecycle.apply(Event.DIED)
        self._lifecycle.apply(Event.GIVE_UP)


NEVER_RETRIED = (
    ExecutableNotFound,
    SpawnFailed,
    VersionMismatch,
    PinMismatch,
    LoadRejected,
    IdentityMismatch,
)
"""Failures that the same attempt would meet again."""


def _load_rejected(refusal: RequestError | LocalProtocolError) -> LoadRejected:
    return LoadRejected(
        refusal.message, code=refusal.code, retryable=refusal.retryable, fields=refusal.fields
    )
