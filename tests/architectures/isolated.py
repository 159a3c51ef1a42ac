"""Calls in another process: llama.cpp ends its process over a model that it cannot take, and a test must tell
that from a difference."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_SECONDS = 60


class OtherProcess:
    """One process that makes call after call; another one takes over when it has died."""

    def __init__(self) -> None:
        # Spawned, not forked: the process that runs the tests may have threads of the library.
        self._context = multiprocessing.get_context("spawn")
        self._start()

    def _start(self) -> None:
        self._connection, other = self._context.Pipe()
        self._process = self._context.Process(target=_serve, args=(other,), daemon=True)
        self._process.start()
        other.close()

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`function(*args, **kwargs)`, in the other process; all of these and the result can be pickled.

        Raises RuntimeError when that raises, ends its process or takes too long, and says which.
        """
        self._connection.send((function, args, kwargs))
        try:
            if not self._connection.poll(_SECONDS):
                raise EOFError
            result, error = self._connection.recv()
        except EOFError:
            raise RuntimeError(f"{function.__name__}{args} {self._replace()}") from None
        if error:
            raise RuntimeError(f"{function.__name__}{args} failed:\n{error}")
        outcome: T = result
        return outcome

    def _replace(self) -> str:
        """Starts another process and says what became of this one."""
        self._process.join(1)
        code = self._process.exitcode
        self.close()
        self._start()
        return f"took over {_SECONDS} seconds" if code is None else f"ended its process with status {code}"

    def close(self) -> None:
        """Ends the process."""
        self._connection.close()
        self._process.kill()
        self._process.join()


def _serve(connection: Connection) -> None:
    while True:
        try:
            function, args, kwargs = connection.recv()
        except EOFError:
            return
        connection.send(_outcome(function, args, kwargs))


def _outcome(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, str]:
    """The result and nothing, or nothing and what was raised: not every error can be pickled."""
    try:
        return function(*args, **kwargs), ""
    except Exception:
        return None, traceback.format_exc()
