"""The one place where whatever goes wrong becomes one line on stderr and an exit status."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

import typer

from gguf_worker.cli.streams import abandon_streams, settle_stdout
from gguf_worker.cli.text import one_line
from gguf_worker.errors import GgufWorkerError, WorkerDied

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


class CommandError(Exception):
    """Raised when a command cannot do what it was asked.

    `remedy` is what the user can do about it, where `message` does not say it already.
    """

    def __init__(self, message: str, *, remedy: str = "", exit_status: int = EXIT_USAGE) -> None:
        super().__init__(f"{message} ({remedy})" if remedy else message)
        self.exit_status = exit_status


def guarded(command: Callable[[], int | None]) -> int:
    """Runs `command` and returns the process's exit status. An error that is not foreseen is a defect and
    keeps its traceback."""
    try:
        status = command() or 0
        sys.stdout.flush()
        return status
    except (Exception, KeyboardInterrupt, SystemExit, BaseExceptionGroup) as error:
        return _settle(_first_cause(error))


def _settle(cause: BaseException) -> int:
    """Says what went wrong, where that is for the user to know, and returns the exit status."""
    match cause:
        case KeyboardInterrupt():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            return EXIT_INTERRUPTED
        case BrokenPipeError():
            abandon_streams()
            return EXIT_BROKEN_PIPE
        case SystemExit() if isinstance(cause.__context__, BrokenPipeError):  # made by typer or rich
            return _settle(cause.__context__)
        case typer.TyperException() if not cause.format_message():  # no arguments: the help was printed
            return EXIT_USAGE
    line = describe(cause)
    if line is None:
        raise cause
    settle_stdout()
    print(f"error: {line}", file=sys.stderr)
    return _exit_status(cause)


def describe(error: BaseException) -> str | None:
    """The error in one line, with its remedy; None for an error that is not foreseen."""
    match error:
        case CommandError():
            return one_line(str(error))
        case WorkerDied():
            return one_line(
                f"{error} (run the command again; `gguf-worker doctor` looks for what is missing)"
            )
        case GgufWorkerError():
            return one_line(str(error))
        case typer.TyperException():
            return one_line(f"{error.format_message()} (run `{_command_path(error)} --help`)")
        case OSError(filename=str(name), strerror=str(reason)):
            return one_line(f"{name}: {reason} (check the path and its permissions)")
        case OSError():
            return one_line(str(error))
        case _:
            return None


def _first_cause(error: BaseException) -> BaseException:
    """The first error inside nested groups of a task group: what the others were cancelled for."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _exit_status(error: BaseException) -> int:
    if isinstance(error, CommandError):
        return error.exit_status
    return EXIT_USAGE if isinstance(error, typer.TyperException) else EXIT_FAILED


def _command_path(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return str(context.command_path) if context is not None else "gguf-worker"
