"""One child process that we own: spawn, signal, see it end, reap it, let go of everything."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import anyio
import psutil

from gguf_worker.errors import SpawnFailed
from gguf_worker.process import survivors
from gguf_worker.process.death import Reaper, reaper_of
from gguf_worker.process.exit import RawStatus
from gguf_worker.process.oom import OomWatch
from gguf_worker.process.pidfd import exit_status_from_pidfd, open_pidfd
from gguf_worker.process.pipes import Descriptor, open_pipe
from gguf_worker.process.shared_memory import SharedMemoryWatch

POLL_INTERVAL_S = 0.02
"""Where there is no pidfd, how often the end of the process is looked for."""
LAST_RESORT_S = 1.0
"""How long the event loop may be held up for a process that was killed to end."""
LAST_RESORT_POLL_S = 0.002


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class ChildProcess:
    """A worker process in a process group of its own, with pipes on its three standard streams."""

    pid: int
    stdin: Descriptor
    stdout: Descriptor
    stderr: Descriptor
    pidfd: Descriptor | None
    started: float
    """Of the monotonic clock, in seconds."""
    oom_watch: OomWatch
    shared_memory: SharedMemoryWatch
    mark: str
    """In the environment of the process and of all that it starts."""
    signals_sent: set[int] = field(default_factory=set)
    status: RawStatus | None = None
    """Set once the process is reaped."""
    _popen: subprocess.Popen[bytes]
    _reaper: Reaper

    @classmethod
    def spawn(cls, arguments: Sequence[str], environment: Mapping[str, str]) -> Self:
        """Starts the process. Call it on the event loop's thread: the kernel kills the worker when the
        *thread* that spawned it ends, and a thread of a pool may end at any time. There is no await in
        here, so a child never exists without its owner."""
        oom_watch, mark = OomWatch.begin(), survivors.new_mark()
        ends: list[int] = []
        try:
            for _ in range(3):
                ends += open_pipe()
            child_stdin, stdin, stdout, child_stdout, stderr, child_stderr = ends
            popen = subprocess.Popen(
                arguments,
                stdin=child_stdin,
                stdout=child_stdout,
                stderr=child_stderr,
                env={**environment, survivors.VARIABLE: mark},
                close_fds=True,
                restore_signals=True,  # a C program expects SIGPIPE to be what it was before Python
                process_group=0,
            )
        except (OSError, ValueError) as error:
            _close_all(*ends)
            raise _spawn_failed(arguments[0], error) from error
        _close_all(child_stdin, child_stdout, child_stderr)
        for end in (stdin, stdout, stderr):
            os.set_blocking(end, False)
        pidfd = open_pidfd(popen.pid)
        child = cls(
            pid=popen.pid,
            stdin=Descriptor(stdin),
            stdout=Descriptor(stdout),
            stderr=Descriptor(stderr),
            pidfd=None if pidfd is None else Descriptor(pidfd),
            started=time.monotonic(),
            oom_watch=oom_watch,
            shared_memory=SharedMemoryWatch(popen.pid),
            mark=mark,
            _popen=popen,
            _reaper=reaper_of(popen.pid),
        )
        _OWNED.add(child)
        return child

    @property
    def descriptors(self) -> tuple[Descriptor, ...]:
        """Everything that must be closed in the end."""
        ends = (self.stdin, self.stdout, self.stderr)
        return ends if self.pidfd is None else (*ends, self.pidfd)

    @property
    def uptime_s(self) -> float:
        return time.monotonic() - self.started

    def resident_bytes(self) -> int:
        """Resident memory of the process now; 0 once it has ended, and where nobody can look."""
        try:
            return int(psutil.Process(self.pid).memory_info().rss)
        except (psutil.Error, OSError):  # the second where no descriptor is free
            return 0

    async def wait_for_end(self) -> None:
        """Returns when the process has ended; it is not reaped yet, so its pid cannot have another owner."""
        if self.pidfd is not None and self.pidfd.is_open:
            await anyio.wait_readable(self.pidfd.number)
            return
        while not self._reaper.has_ended():  # noqa: ASYNC110 - without a pidfd nothing wakes us
            await anyio.sleep(POLL_INTERVAL_S)

    def signal_group(self, number: int) -> None:
        """Sends a signal to the process and all that it started, as long as the pid is certain to be ours."""
        if self.status is None and self._reaper.is_ours():
            self.signals_sent.add(number)
            self._signal(number)

    def reap(self) -> RawStatus:
        """Takes the status of the ended process and kills what it left in its group.

        The group is killed while the leader is still a zombie: until it is reaped neither its pid nor its
        group's number can be given to anybody else.
        """
        if self.status is None:
            if self._reaper.is_ours():
                self._signal(signal.SIGKILL)
            status = self._reaper.take()
            self._settle((self._known_to_pidfd() or status) if status.stolen else status)
        assert self.status is not None
        return self.status

    def group_is_empty(self) -> bool:
        """Whether no living process is left in the group. Only after `reap`."""
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass  # there is a group, of another user or of zombies only
        return not _living_members(self.pid)

    def destroy(self) -> None:
        """The last resort, without an await: kills what is there and closes every descriptor."""
        if self.status is None:
            self.signal_group(signal.SIGKILL)
            deadline = time.monotonic() + LAST_RESORT_S
            while not self._reaper.has_ended() and time.monotonic() < deadline:
                time.sleep(LAST_RESORT_POLL_S)
            if self._reaper.has_ended():
                self.reap()
        for descriptor in self.descriptors:
            descriptor.close()

    def _settle(self, status: RawStatus) -> None:
        self.status = status
        # Popen would look for the status again when it is collected; nobody has it any more.
        self._popen.returncode = -1 if status.exit_code is None else status.exit_code

    def _signal(self, number: int) -> None:
        # The group may be gone already, or (macOS) hold nothing but a zombie.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _known_to_pidfd(self) -> RawStatus | None:
        if self.pidfd is None or not self.pidfd.is_open:
            return None
        return exit_status_from_pidfd(self.pidfd.number)


_OWNED: weakref.WeakSet[ChildProcess] = weakref.WeakSet()


def _let_go_in_forked_process() -> None:
    """A process that this one forks (multiprocessing does) has copies of all our descriptors. With them it
    would keep a worker from seeing the end of its input, and us from seeing the end of its output. They are
    closed as they are: to tell the event loop of it would unregister them from the parent's epoll."""
    for child in list(_OWNED):
        for descriptor in child.descriptors:
            descriptor.close_quietly()


os.register_at_fork(after_in_child=_let_go_in_forked_process)


def _living_members(group: int) -> list[int]:
    """The pids of the group that are more than zombies which their parent has not reaped."""
    return [
        process.pid
        for process in psutil.process_iter(["status"])
        if process.info["status"] != psutil.STATUS_ZOMBIE and _group_of(process.pid) == group
    ]


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def _spawn_failed(executable: str, error: OSError | ValueError) -> SpawnFailed:
    """Of an OSError (no such file, too many descriptors) or Popen's ValueError (a NUL in an argument)."""
    reason = error.strerror if isinstance(error, OSError) else str(error)
    fields = {"path": executable}
    if isinstance(error, OSError):
        fields["errno"] = str(error.errno)
    return SpawnFailed(f"the worker {executable!r} cannot be started: {reason}", fields=fields)


def _close_all(*numbers: int) -> None:
    for number in numbers:
        os.close(number)
