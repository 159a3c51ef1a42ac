"""Supervises one worker: starts it, starts it again when it dies, and gives up when that does not help."""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType

import anyio
from anyio.abc import TaskGroup

from gguf_worker.errors import (
    ExecutableNotFound,
    GgufWorkerError,
    GivenUp,
    IdentityMismatch,
    LoadRejected,
    LocalProtocolError,
    PinMismatch,
    RequestError,
    SpawnFailed,
    StartupError,
    Unreleased,
    VersionMismatch,
    WorkerDied,
    WorkerStopped,
)
from gguf_worker.identity import Identity
from gguf_worker.process.exit import ExitCause, ExitReport
from gguf_worker.process.release import ReleaseReport
from gguf_worker.protocol.messages import GetHealth, Health, Loaded, Progress
from gguf_worker.supervision.admission import explain, load_request
from gguf_worker.supervision.attest import check_attested, check_unchanged
from gguf_worker.supervision.channel import ProgressCallback
from gguf_worker.supervision.events import (
    EventLog,
    EventReader,
    GaveUp,
    LoadProgress,
    RestartScheduled,
    Stamp,
    StateChanged,
    StderrLine,
    WorkerEnded,
    WorkerReady,
    WorkerReleased,
)
from gguf_worker.supervision.life import Life, WorkerCommand
from gguf_worker.supervision.lifecycle import Event, Lifecycle, WorkerState
from gguf_worker.supervision.metrics import Metrics, Tally
from gguf_worker.supervision.policy import Decision, Failure, GiveUp, Restart, RestartHistory
from gguf_worker.supervision.settings import WorkerSettings
from gguf_worker.supervision.spec import ShardSpec
from gguf_worker.supervision.worker import Worker

METRICS_TIMEOUT_S = 1.0
"""How long `metrics` waits for the worker's own words before it gives the last ones."""


class Supervisor:
    """An async context manager around one worker:

        supervisor = Supervisor(spec)
        async with supervisor as worker:
            session = await worker.open_session()

    Entering it gives the first ready Worker, whose attested identity equals the specification, or raises
    StartupError (or one of its kinds) with nothing left behind. Leaving it stops the worker by the ladder;
    `exit` and `release` then say how.

    A Worker is one process. When it dies, every call on it and on its sessions fails with WorkerDied, once
    for each that was pending; the body goes on. By `settings.restart` another process with the same identity
    takes its place: `await supervisor.wait_ready()` gives it, and sessions are opened on it anew. A worker
    that dies too often is given up until somebody calls `reset`.

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
        self.generation = 0
        """Processes begun so far; the number of the newest one."""
        self.restarts = 0
        """How often another process took the place of one that died."""
        self.failure: GgufWorkerError | None = None
        """Why the worker was given up; None while it was not."""
        self._on_progress = on_progress
        self._on_stderr = on_stderr
        self._lifecycle = Lifecycle(on_change=self._take_change)
        self._history = RestartHistory(self.settings.restart)
        self._log = EventLog()
        self._tally = Tally()
        self._life: Life | None = None
        self._worker: Worker | None = None
        self._identity: Identity | None = None
        self._ready_at = 0.0
        self._ready_for_s = 0.0
        self._decision: Decision | None = None
        self._wake = anyio.Event()
        self._changed = anyio.Event()
        self._tasks: TaskGroup | None = None
        self._owner_scope: anyio.CancelScope

    def __repr__(self) -> str:
        what = f"pid={self.pid} identity={self._identity} restarts={self.restarts}"
        return f"<Supervisor {self.state.value} {what}>"

    # ---- what it is ----

    @property
    def state(self) -> WorkerState:
        """Where the worker is."""
        return self._lifecycle.state

    @property
    def pid(self) -> int | None:
        """The newest process's id; None before the first spawn."""
        return self._life.pid if self._life is not None else None

    @property
    def worker(self) -> Worker | None:
        """The newest worker; None before the first one was ready. Between a death and the next start it is
        the dead one, whose calls raise WorkerDied."""
        return self._worker

    @property
    def exit(self) -> ExitReport | None:
        """How the newest process ended; None while it lives."""
        return self._life.exit if self._life is not None else None

    @property
    def release(self) -> ReleaseReport | None:
        """What the newest process left; None until it ended and was measured."""
        return self._life.release if self._life is not None else None

    def events(self, *, from_start: bool = True) -> EventReader:
        """Follows what happens, from the first event that is still kept or from now on. Any number of readers
        may do so, before, while and after the supervisor is entered; none can hold it up."""
        return self._log.reader(from_start=from_start)

    # ---- what it does ----

    async def wait_ready(self) -> Worker:
        """The ready worker, or the next one that becomes ready.

        Raises the reason where the worker was given up (GivenUp, LoadRejected, ...), and WorkerStopped where
        it is being stopped.
        """
        while True:
            match self.state:
                case WorkerState.READY:
                    assert self._worker is not None
                    return self._worker
                case WorkerState.FAILED:
                    assert self.failure is not None
                    raise self.failure.with_traceback(None)  # of whoever was told before
                case WorkerState.DRAINING | WorkerState.STOPPED:
                    raise WorkerStopped("the worker was stopped and will not be ready again")
            await self._changed.wait()

    async def health(self) -> Health:
        """The ready worker's own words. Raises as `Worker.health`, and WorkerStopped before there is one."""
        if self._worker is None:
            raise WorkerStopped(f"no worker was ready yet: it is {self.state.value}")
        return await self._worker.health()

    async def metrics(self) -> Metrics:
        """One look at everything; where the worker does not answer within a second, with its last words."""
        is_fresh = await self._fresh_health()
        life, worker = self._life, self._worker
        living = life if life is not None and life.exit is None and life.pid is not None else None
        return Metrics(
            state=self.state,
            generation=self.generation,
            pid=self.pid,
            restarts=self.restarts,
            causes=dict(self._tally.causes),
            failure=self.failure.message if self.failure is not None else None,
            identity=self._identity,
            ownership=worker.ownership if worker is not None else None,
            memory=worker.memory if worker is not None else None,
            capacity=worker.capacity if worker is not None else None,
            load_s=worker.load_s if worker is not None else None,
            uptime_s=living.uptime_s if living is not None else None,
            health=living.channel.health if living is not None else None,
            health_is_fresh=is_fresh,
            in_flight=len(living.channel.in_flight) if living is not None else 0,
            totals=self._tally.totals.plus(living.channel.health if living is not None else None),
            stderr_lines=self._tally.stderr_lines,
            stderr_lines_dropped=life.stderr.dropped_lines if life is not None else 0,
        )

    async def drain(self, timeout_s: float) -> bool:
        """Lets the worker finish: it opens no more sessions, and this returns when every session is closed
        and every request answered, or after `timeout_s`. True where nothing was left, also because the worker
        died meanwhile. It is not started again from here on; leaving the context stops it."""
        if self._tasks is None:
            return True
        before = self.state
        if self._lifecycle.can(Event.STOP):
            self._lifecycle.apply(Event.STOP)
        if before not in (WorkerState.READY, WorkerState.DRAINING):
            self._owner_scope.cancel()
        if self._owner_scope.cancel_called or self._life is None:
            return True
        with anyio.move_on_after(timeout_s) as scope:
            await self._life.channel.drained()
        return not scope.cancelled_caught

    def kill(self) -> None:
        """Stops without any patience: SIGKILL for the process and all that it started, and none is started
        again. Whoever waits is told; leaving the context still measures what was released."""
        if self._tasks is None:
            return
        if self._lifecycle.can(Event.STOP):
            self._lifecycle.apply(Event.STOP)
        if self._life is not None:
            self._life.kill()
        self._owner_scope.cancel()

    def reset(self) -> None:
        """Forgets every failure, because its cause was mended. A worker that was given up, or that waits for
        its restart, is started at once. Without effect once it was drained, killed or left."""
        self._history.reset()
        if self.state is WorkerState.FAILED and not self._owner_scope.cancel_called:
            self.failure = None
            self._lifecycle.apply(Event.RESET)
        self._wake.set()

    # ---- its context ----

    async def __aenter__(self) -> Worker:
        if self._tasks is not None:
            raise RuntimeError("a Supervisor is entered once; make another one for another worker")
        self._owner_scope = anyio.CancelScope(shield=True)
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        try:
            self._tasks.start_soon(self._own, name="worker owner")
            return await self.wait_ready()
        except BaseException:
            await self._leave()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave()

    async def _leave(self) -> None:
        assert self._tasks is not None
        if self._lifecycle.can(Event.STOP):
            self._lifecycle.apply(Event.STOP)
        self._owner_scope.cancel()
        try:
            await self._tasks.__aexit__(None, None, None)
        finally:
            self._log.close()

    # ---- the owner task ----

    async def _own(self) -> None:
        """Lives one life after the other until it is told to stop."""
        with self._owner_scope:
            while self.state is WorkerState.STARTING:
                error = await self._live()
                if not self._is_stopping:
                    await self._recover(error)
        if self.state is WorkerState.DRAINING:
            self._lifecycle.apply(Event.ENDED)

    async def _live(self) -> StartupError | None:
        """One process, from its spawn to its release; gives what kept it from becoming ready."""
        self.generation += 1
        self._ready_for_s = 0.0
        self._decision = None
        command = WorkerCommand(
            engine=self.spec.engine, fault_plan=self.spec.fault_plan, gives_way=not self.spec.is_alone
        )
        self._life = life = Life(
            command, self.settings, on_stderr=self._take_stderr_line, on_end=self._take_end
        )
        try:
            async with life:
                self._move(Event.HELLO)
                self._worker = await self._load(life)
                self._take_ready(self._worker, life)
                await life.ended.wait()
        except StartupError as error:
            error.exit = life.exit
            return error
        finally:
            if life.release is not None:
                self._log.add(WorkerReleased(stamp=self._stamp(), release=life.release))
        return None

    async def _load(self, life: Life) -> Worker:
        spec = self._pinned_spec()
        started = time.monotonic()
        try:
            request = load_request(spec)
            loaded = await life.channel.request(request, Loaded, on_progress=self._take_progress)
            check_attested(spec, loaded)
            if self._identity is not None:
                check_unchanged(self._identity, loaded)
            if life.exit is not None:  # between its answer and this turn
                raise WorkerDied(life.exit)
        except WorkerDied as death:
            raise StartupError.from_death(death) from death
        except (RequestError, LocalProtocolError) as refusal:
            life.blame(ExitCause.LOAD_REJECTED, refusal.message)
            raise _load_rejected(refusal) from refusal
        except IdentityMismatch as mismatch:
            life.blame(ExitCause.IDENTITY_MISMATCH, mismatch.message)
            raise
        return Worker(life, loaded, self._lifecycle, self.settings, time.monotonic() - started)

    def _pinned_spec(self) -> ShardSpec:
        """After a restart nothing is left to the engine's choice: it is asked for what the first life had."""
        identity = self._identity
        if identity is None:
            return self.spec
        layers = (identity.start, identity.end)
        return replace(self.spec, artifact=identity.artifact, layers=layers, recipe=identity.recipe)

    # ---- after a death ----

    async def _recover(self, error: StartupError | None) -> None:
        """Waits for the moment of the next start; where the worker is given up, for somebody's `reset`."""
        if self._decision is None:
            self._decide(error)
        decision = self._decision
        # One that was given up is FAILED here, unless somebody's `reset` was faster than its release.
        will_start = self.state is not WorkerState.FAILED
        if will_start and self.release is not None and not self.release.complete:
            decision = self._decision = self._unreleased(self.release)
        if isinstance(decision, Restart):
            self._announce_restart(decision, error)
            with anyio.move_on_after(decision.delay_s):
                await self._wake.wait()
            self._move(Event.RETRY)
        else:
            await self._wake.wait()
        self.restarts += 1

    def _decide(self, error: StartupError | None) -> None:
        """Asks the policy what to do about a death in the ready state, or about a start that failed."""
        self._wake = anyio.Event()
        failure = Failure(
            at=time.monotonic(),
            cause=self.exit.kind() if self.exit is not None else error.code if error is not None else "",
            ready_for_s=self._ready_for_s,
            may_retry=error is None or _may_retry(error),
        )
        self._decision = decision = self._history.decide(failure, random.random)
        if isinstance(decision, GiveUp):
            self._give_up(self._failure_of(decision, error), decision.causes)

    def _unreleased(self, release: ReleaseReport) -> GiveUp:
        self._wake = anyio.Event()
        what = "; ".join(release.unreleased)
        decision = GiveUp(reason=f"it was not released: {what}", causes=(what,))
        self._give_up(Unreleased(f"the worker is not started again: {decision.reason}"), decision.causes)
        return decision

    def _failure_of(self, decision: GiveUp, error: StartupError | None) -> StartupError:
        """What cannot or shall not be tried again is told as it is; anything else with what was tried."""
        if error is not None and (not _may_retry(error) or self.settings.restart.max_restarts == 0):
            return error
        failure = GivenUp(f"the worker was given up: {decision.reason}", causes=decision.causes)
        failure.__cause__ = error
        return failure

    def _give_up(self, failure: StartupError, causes: tuple[str, ...]) -> None:
        failure.exit = self.exit
        self.failure = failure
        self._log.add(GaveUp(stamp=self._stamp(), reason=failure.message, causes=causes))
        if self._lifecycle.can(Event.REFUSED) and not _may_retry(failure):
            self._move(Event.REFUSED)
            return
        if self._lifecycle.can(Event.DIED):
            self._move(Event.DIED)
        self._move(Event.GIVE_UP)

    def _announce_restart(self, restart: Restart, error: StartupError | None) -> None:
        if self._lifecycle.can(Event.DIED):
            self._move(Event.DIED)
        reason = self.exit.describe() if self.exit is not None else error.message if error is not None else ""
        self._log.add(
            RestartScheduled(
                stamp=self._stamp(), delay_s=restart.delay_s, number=restart.number, reason=reason
            )
        )

    # ---- what happens, as it is told ----

    def _move(self, event: Event) -> None:
        """Moves on, unless the worker is being stopped: the owner's cancellation is on its way then."""
        if not self._is_stopping:
            self._lifecycle.apply(event)

    @property
    def _is_stopping(self) -> bool:
        return self.state in (WorkerState.DRAINING, WorkerState.STOPPED)

    def _take_change(self, before: WorkerState, state: WorkerState) -> None:
        stamp = self._stamp()
        if state is WorkerState.STARTING:  # the process that this is about has not begun
            stamp = replace(stamp, generation=self.generation + 1, pid=None)
        self._log.add(StateChanged(stamp=stamp, before=before, state=state))
        self._changed.set()
        self._changed = anyio.Event()

    def _take_ready(self, worker: Worker, life: Life) -> None:
        self._identity = worker.identity
        self._ready_at = time.monotonic()
        life.look_at_memory()
        self._log.add(WorkerReady(stamp=self._stamp(), identity=worker.identity, load_s=worker.load_s))
        self._move(Event.LOADED)

    def _take_end(self, life: Life) -> None:
        """The process has ended and nobody who waits for it knows yet."""
        assert life.exit is not None
        self._tally.causes[life.exit.cause.value] += 1
        self._tally.totals = self._tally.totals.plus(life.channel.health)
        self._log.add(WorkerEnded(stamp=self._stamp(), exit=life.exit))
        if self.state is WorkerState.READY:
            self._take_death()

    def _take_death(self) -> None:
        """A ready worker died: whether another one will follow is known before anybody can ask."""
        self._ready_for_s = time.monotonic() - self._ready_at
        self._move(Event.DIED)
        self._decide(None)

    def _take_progress(self, progress: Progress) -> None:
        self._log.add(
            LoadProgress(stamp=self._stamp(), phase=progress.phase, done=progress.done, total=progress.total)
        )
        if self._on_progress is not None:
            self._on_progress(progress)

    def _take_stderr_line(self, line: str) -> None:
        self._tally.stderr_lines += 1
        self._log.add(StderrLine(stamp=self._stamp(), text=line))
        if self._on_stderr is not None:
            self._on_stderr(line)

    def _stamp(self) -> Stamp:
        return self._log.stamp(self.generation, self.pid)

    async def _fresh_health(self) -> bool:
        """Lets the living worker say how it is; False where it does not in time."""
        if self._life is None or self._life.pid is None:
            return False
        try:
            await self._life.channel.request(GetHealth(), Health, timeout_s=METRICS_TIMEOUT_S)
        except GgufWorkerError:
            return False
        return True


NEVER_RETRIED = (ExecutableNotFound, VersionMismatch, PinMismatch, LoadRejected, IdentityMismatch, Unreleased)
"""Failures that the next attempt would meet again."""

PASSING = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY)
"""Reasons for which a spawn fails now and may succeed soon."""


def _may_retry(error: StartupError) -> bool:
    if isinstance(error, SpawnFailed):
        return error.fields.get("errno", "") in map(str, PASSING)
    return not isinstance(error, NEVER_RETRIED)


def _load_rejected(refusal: RequestError | LocalProtocolError) -> LoadRejected:
    told = explain(refusal) if isinstance(refusal, RequestError) else refusal
    return LoadRejected(told.message, code=told.code, retryable=told.retryable, fields=told.fields)
