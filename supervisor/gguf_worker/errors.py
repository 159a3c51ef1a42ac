"""Every error that this package raises on purpose.

Each has a `code` for programs, a one-line `message` that names the thing and the remedy, a `retryable` flag
(the same call may succeed later without any change) and `fields` with the values that the message speaks of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from gguf_worker.process.exit import ExitReport


class GgufWorkerError(Exception):
    """Base of all errors of this package."""

    default_code: ClassVar[str] = "error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        retryable: bool = False,
        fields: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.retryable = retryable
        self.fields: dict[str, str] = dict(fields or {})

    def __repr__(self) -> str:
        return f"{type(self).__name__}(code={self.code!r}, message={self.message!r}, fields={self.fields!r})"


class LocalProtocolError(GgufWorkerError):
    """Raised when this side tries what the pipe protocol does not allow. Nothing was sent."""

    default_code = "local_protocol"


class RemoteProtocolError(GgufWorkerError):
    """Raised when a peer breaks the pipe protocol. Its stream cannot be trusted any more."""

    default_code = "bad_frame"


class RequestError(GgufWorkerError):
    """Raised when the worker answers a request with an `error` frame; it goes on serving others."""

    default_code = "backend"


class RequestTimeout(GgufWorkerError):
    """Raised when a request was not answered by its deadline. The worker was asked to cancel it."""

    default_code = "timeout"


class WorkerStopped(GgufWorkerError):
    """Raised when a request is made of a worker that its owner has stopped or is stopping."""

    default_code = "stopped"


class StageLost(GgufWorkerError):
    """Raised for every request of a stage that is gone, with the sessions in it. The work may go on with
    another one that is the same."""

    default_code = "stage_lost"


class WorkerDied(StageLost):
    """Raised once for every request that was pending when its worker died, and for each one after it."""

    default_code = "worker_died"

    def __init__(self, report: ExitReport) -> None:
        super().__init__(report.describe(), fields=report.fields())
        self.exit = report


class StartupError(GgufWorkerError):
    """Raised when a worker could not be made ready. `exit` says how its process ended, if there was one."""

    default_code = "startup"
    exit: ExitReport | None = None

    @classmethod
    def from_death(cls, death: WorkerDied) -> StartupError:
        """The same facts, told of a worker that died before it was ready."""
        error = cls(death.message, code=death.exit.cause.value, fields=death.fields)
        error.exit = death.exit
        return error


class ExecutableNotFound(StartupError):
    """Raised when there is no `gguf-shard-worker` to run."""

    default_code = "executable_not_found"


class SpawnFailed(StartupError):
    """Raised when the operating system refuses to start the worker."""

    default_code = "spawn_failed"


class VersionMismatch(StartupError):
    """Raised when worker and supervisor share no protocol version."""

    default_code = "protocol_version"


class PinMismatch(StartupError):
    """Raised when the worker was built for another llama-cpp-python than the one installed."""

    default_code = "pin"


class LoadRejected(StartupError):
    """Raised when the worker refuses to load a shard; code and fields are the worker's own."""

    default_code = "load_rejected"


class IdentityMismatch(StartupError):
    """Raised when what a worker attests differs from what was asked; fields hold both values of each."""

    default_code = "identity"


class PlanError(GgufWorkerError):
    """Raised when a model cannot be divided as it was asked."""

    default_code = "plan"


class Unreleased(StartupError):
    """Raised when something of a worker that ended is still there, so that no other takes its place."""

    default_code = "unreleased"


class GivenUp(StartupError):
    """Raised when a worker has died too often to be started again. `causes` are its last failures, oldest
    first; `exit` is how the last one ended."""

    default_code = "given_up"

    def __init__(self, message: str, *, causes: tuple[str, ...]) -> None:
        super().__init__(message, fields={"causes": "; ".join(causes)})
        self.causes = causes


class RouteError(GgufWorkerError):
    """Raised when shards do not form one complete model."""

    default_code = "route"
