"""One worker process from its spawn to its measured release."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup

from gguf_worker.errors import (
    GgufWorkerError,
    PinMismatch,
    RemoteProtocolError,
    RequestError,
    SpawnFailed,
    StartupError,
    VersionMismatch,
    WorkerDied,
    WorkerStopped,
)
from gguf_worker.process.child import ChildProcess
from gguf_worker.process.executable import find_executable
from gguf_worker.process.exit import (
    ExitCause,
    ExitReport,
    Fault,
    OomEvidence,
    RawStatus,
    StopRung,
    classify,
)
from gguf_worker.process.pipes import PIPE_BYTES
from gguf_worker.process.release import ReleaseReport, measure_release
from gguf_worker.process.stderr import StderrRing
from gguf_worker.process.stop import StopLadder
from gguf_worker.process.transport import read_now, read_while
from gguf_worker.protocol.connection import ConnectionState, HostConnection
from gguf_worker.protocol.messages import Hello
from gguf_worker.supervision.channel import Channel
from gguf_worker.supervision.environment import default_environment
from gguf_worker.supervision.hang import HangWatch
from gguf_worker.supervision.pin import check_pin, installed_library_version
from gguf_worker.supervision.settings import WorkerSettings

STDERR_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCommand:
    """What the executable is started with."""

    engine: str
    fault_plan: str | None = None
    gives_way: bool = True
    """Whether its threads leave the processors to other stages when they wait for each other."""

    @property
    def environment(self) -> dict[str, str]:
        return default_environment(gives_way=self.gives_way)

    def arguments(self, settings: WorkerSettings) -> list[str]:
        try:
            executable = os.fspath(find_executable(settings.executable))
        except OSError as error:  # no descriptor is free to look with
            raise SpawnFailed(
                f"the worker's executable cannot be looked for: {error}", fields={"errno": str(error.errno)}
            ) from error
        arguments = [executable, "--engine", self.engine, "--parent-pid", str(os.getpid())]
        arguments += ["--max-frame-bytes", str(settings.max_frame_bytes)]
        arguments += ["--compute-nice", str(settings.compute_nice)]
        return arguments if self.fault_plan is None else [*arguments, "--fault-plan", self.fault_plan]


class Life:
    """A worker process that has said hello, as an async context manager.

    Its tasks read frames, write them, watch deadlines and progress, read stderr and watch the process end.
    What the others see of a dying worker (an end of file, a broken pipe) only hurries the last one, which
    alone decides how it ended and tells everybody who waits. Leaving the context stops the process by the
    ladder, reaps it, closes every descriptor and measures what was released; a task that is being cancelled
    does all of this too.
    """

    def __init__(
        self,
        command: WorkerCommand,
        settings: WorkerSettings,
        *,
        on_stderr: Callable[[str], None] | None = None,
        on_end: Callable[[Life], None] | None = None,
    ) -> None:
        """`on_end` is called when `exit` is known, before any pending request hears of it."""
        self._command = command
        self._on_end = on_end
        self._settings = settings
        self._fault: Fault | None = None
        self._resident_before_bytes = 0
        self._version_mismatch: VersionMismatch | None = None
        self._task_scopes: list[anyio.CancelScope] = []
        self._stream_ended = anyio.Event()
        self._stream_detail = ""
        self._stderr_chunk = memoryview(bytearray(STDERR_CHUNK_BYTES))
        self.stderr = StderrRing(max_lines=settings.stderr_lines, on_line=on_stderr)
        self.ended = anyio.Event()
        """Set when the process is reaped (or, hanging, not even ended by SIGKILL) and every pending request
        was failed."""
        self.exit: ExitReport | None = None
        self.release: ReleaseReport | None = None
        self.hello: Hello
        self.channel: Channel
        self.pid: int | None = None
        """The process id; None before the spawn."""
        self._child: ChildProcess
        self._ladder: StopLadder
        self._tasks: TaskGroup

    async def __aenter__(self) -> Self:
        """Raises StartupError or one of its kinds; nothing is left of the process then."""
        self._start()
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        try:
            self._start_tasks()
            self.hello = await self._handshake()
            self.look_at_memory()
        except BaseException as error:
            await self._finish()
            if isinstance(error, StartupError):
                error.exit = self.exit
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._finish()

    # ---- for the owner ----

    @property
    def uptime_s(self) -> float:
        """Since the spawn."""
        return self._child.uptime_s

    def look_at_memory(self) -> None:
        """Notes what the process holds now, while it can be asked of the kernel; shared memory is looked for
        when it has ended."""
        self._child.shared_memory.look()
        self._resident_before_bytes = self._child.resident_bytes()

    def condemn(self, cause: ExitCause, detail: str) -> None:
        """Ends the process at once, because of what it did; the first cause stands."""
        self.blame(cause, detail)
        self._child.signal_group(signal.SIGKILL)

    def kill(self) -> None:
        """Ends the process at once, because its owner asks for it."""
        if self.pid is not None and self.exit is None:
            self._ladder.kill()

    def blame(self, cause: ExitCause, detail: str) -> None:
        """Records why the process will have ended, without ending it."""
        if self._fault is None:
            self._fault = Fault(cause=cause, detail=detail)

    # ---- start ----

    def _start(self) -> None:
        environment = {**self._command.environment, **os.environ, **self._settings.environment}
        # Where ggml aborts it would otherwise fork a debugger that writes to inherited descriptors.
        environment["GGML_NO_BACKTRACE"] = "1"
        self._child = ChildProcess.spawn(self._command.arguments(self._settings), environment)
        self.pid = self.stderr.pid = self._child.pid
        self.channel = Channel(
            pid=self._child.pid,
            connection=HostConnection(max_frame_bytes=self._settings.max_frame_bytes),
            stdin=self._child.stdin,
            stdout=self._child.stdout,
            on_fault=self._on_fault,
            on_stream_end=self._on_stream_end,
        )
        self._ladder = StopLadder(
            child=self._child,
            gone=self.ended,
            ask=self.channel.ask_to_stop,
            end_input=self.channel.close_input,
            deadlines=self._settings.stop,
        )

    def _start_tasks(self) -> None:
        for work in (
            self._watch_end,
            self._watch_progress,
            self._hurry_after_stream_end,
            self._read_stderr,
            self.channel.run_reader,
            self.channel.run_writer,
            self.channel.run_deadlines,
        ):
            self._tasks.start_soon(self._run_to_the_end, work, name=f"worker {self.pid}: {work.__name__}")

    async def _run_to_the_end(self, work: Callable[[], Awaitable[None]]) -> None:
        """Shields a task from the owner's cancellation: without it nobody would see the stop that follows."""
        with anyio.CancelScope(shield=True) as scope:
            self._task_scopes.append(scope)
            await work()

    async def _handshake(self) -> Hello:
        timeout_s = self._settings.hello_timeout_s
        hello = None
        with anyio.move_on_after(timeout_s):
            hello = await self._greeting()
        if hello is None:
            self.condemn(ExitCause.STARTUP_TIMEOUT, f"no hello within {timeout_s:g} s")
            with anyio.move_on_after(self._settings.stop.kill_s):
                hello = await self._greeting()
        if hello is None:
            raise StartupError(
                f"worker {self.pid} gave no hello within {timeout_s:g} s and SIGKILL did not end it; "
                "look for a process in uninterruptible sleep"
            )
        try:
            check_pin(hello.build, installed_library_version())
        except PinMismatch as error:
            self.blame(ExitCause.IDENTITY_MISMATCH, error.message)
            raise
        return hello

    async def _greeting(self) -> Hello:
        try:
            return await self.channel.hello()
        except WorkerDied as death:
            raise (self._version_mismatch or StartupError.from_death(death)) from death
        except RequestError as refusal:
            self.blame(_cause_of_refusal(refusal), refusal.message)
            raise _startup_error_of(refusal) from refusal

    # ---- what the tasks see ----

    def _on_fault(self, error: RemoteProtocolError | VersionMismatch) -> None:
        if isinstance(error, VersionMismatch):
            self._version_mismatch = error
        self.condemn(ExitCause.PROTOCOL_ERROR, error.message)

    def _on_stream_end(self, detail: str) -> None:
        self._stream_detail = self._stream_detail or detail
        self._stream_ended.set()

    async def _hurry_after_stream_end(self) -> None:
        """A worker that closed a pipe has no way to be useful; it gets a moment to end by itself."""
        await self._stream_ended.wait()
        with anyio.move_on_after(self._settings.end_of_stream_grace_s):
            await self.ended.wait()
        if not self.ended.is_set() and not self._is_stopping:
            self.condemn(ExitCause.PROTOCOL_ERROR, f"{self._stream_detail} and it lived on")

    async def _watch_progress(self) -> None:
        """Ends a worker that hangs. One that SIGKILL does not end (it is stuck in the kernel) is given up:
        nobody waits for it for ever."""
        detail = await HangWatch(self.channel, self._settings).run()
        self.condemn(ExitCause.HANG, detail)
        with anyio.move_on_after(self._settings.stop.kill_s):
            await self.ended.wait()
        if self.exit is None:
            self._fault = Fault(cause=ExitCause.HANG, detail=f"{detail}, and SIGKILL did not end it")
            self._conclude(RawStatus(), frozenset(self._child.signals_sent))

    async def _read_stderr(self) -> None:
        await read_while(self._child.stderr, self._take_stderr)

    def _take_stderr(self) -> bool:
        """Reads once; False at the end of the stream."""
        count = read_now(self._child.stderr, self._stderr_chunk)
        self.stderr.feed(self._stderr_chunk[: count or 0])
        return count != 0

    async def _watch_end(self) -> None:
        """Waits for the process to end, then takes everything it left before anybody hears of it."""
        await self._child.wait_for_end()
        self.channel.drain(self._settings.max_frame_bytes + PIPE_BYTES)
        self._drain_stderr()
        signals_sent = frozenset(self._child.signals_sent)
        status = self._child.reap()
        if self.exit is None:
            self._conclude(status, signals_sent)

    def _drain_stderr(self) -> None:
        for _ in range(PIPE_BYTES // STDERR_CHUNK_BYTES):
            if not self._take_stderr():
                break
        self.stderr.finish()

    def _conclude(self, status: RawStatus, signals_sent: frozenset[int]) -> None:
        child = self._child
        suspicious = status.signal == signal.SIGKILL and signal.SIGKILL not in signals_sent
        cause = classify(
            status,
            fault=self._fault,
            asked_to_stop=self._is_stopping,
            signals_sent=signals_sent,
            oom=child.oom_watch.evidence(child.pid) if suspicious else OomEvidence.NONE,
        )
        self.exit = ExitReport(
            cause=cause,
            pid=child.pid,
            exit_code=status.exit_code,
            signal=status.signal,
            core_dumped=status.core_dumped,
            detail=self._detail(),
            stderr_tail=self.stderr.tail(),
            stop_rung=self._ladder.rung,
            uptime_s=child.uptime_s,
            status_stolen=status.stolen,
        )
        if self._on_end is not None:
            self._on_end(self)
        self.channel.end(self._ended_error)
        self.ended.set()

    def _detail(self) -> str:
        if self._fault is not None:
            return self._fault.detail
        refusal = self.channel.refusal
        return refusal.message if refusal is not None else self._stream_detail_of_crash()

    def _stream_detail_of_crash(self) -> str:
        """An end inside a frame is worth telling; a plain one is how every death looks from here."""
        inside_a_frame = self.channel.connection.state is ConnectionState.BROKEN
        return self._stream_detail if inside_a_frame and not self._is_stopping else ""

    def _ended_error(self) -> GgufWorkerError:
        assert self.exit is not None
        stopped = self._is_stopping and self.exit.cause is ExitCause.STATUS_STOLEN
        if stopped or self.exit.cause in (ExitCause.CLEAN, ExitCause.SIGNAL_OURS):
            return WorkerStopped(f"worker {self.exit.pid} was stopped")
        return WorkerDied(self.exit)

    # ---- end ----

    @property
    def _is_stopping(self) -> bool:
        return self._ladder.rung is not StopRung.ALREADY_GONE

    async def _finish(self) -> None:
        """Stops, reaps, closes and measures, whatever state the process is in."""
        try:
            if not self.ended.is_set():
                self.look_at_memory()
            with anyio.CancelScope(shield=True):
                await self._ladder.descend()
        finally:
            # Also where the ladder was interrupted: no scope holds off a native `Task.cancel`.
            await self._release()

    async def _release(self) -> None:
        if not self.ended.is_set():
            self._child.signal_group(signal.SIGKILL)
        try:
            for scope in self._task_scopes:
                scope.cancel()
            await self._tasks.__aexit__(None, None, None)
        finally:
            self._let_go()
            with anyio.CancelScope(shield=True):
                self.release = await measure_release(
                    self._child,
                    stop_rung=self._ladder.rung,
                    bye=self.channel.bye,
                    resident_before_bytes=self._resident_before_bytes,
                )

    def _let_go(self) -> None:
        """Closes everything. Finds a living process only where SIGKILL did not end it, or where the event
        loop is being torn down and cancels even what is shielded."""
        self._child.destroy()
        if self.exit is None:
            self._conclude(self._child.status or RawStatus(), frozenset(self._child.signals_sent))


def _cause_of_refusal(refusal: RequestError) -> ExitCause:
    return ExitCause.IDENTITY_MISMATCH if refusal.code == "identity" else ExitCause.PROTOCOL_ERROR


def _startup_error_of(refusal: RequestError) -> StartupError:
    kind = PinMismatch if refusal.code == "identity" else StartupError
    return kind(refusal.message, code=refusal.code, retryable=refusal.retryable, fields=refusal.fields)
