"""The one place where whatever goes wrong becomes one line on stderr and an exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import typer

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
        return command() or 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _abandon_stdout()
        return EXIT_BROKEN_PIPE
    except Exception as error:
        cause = _first_cause(error)
        if isinstance(cause, KeyboardInterrupt):
            return EXIT_INTERRUPTED
        line = describe(cause)
        if line is None:
            raise
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


def one_line(text: str) -> str:
    """`text` with every run of white space, line ends included, turned into one space."""
    return " ".join(text.split())


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


def _abandon_stdout() -> None:
    """Points stdout elsewhere, so that the interpreter's last flush does not complain a second time."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
