"""Work that may hang, or takes native code, in a process beside this one: one question at a time, each within
a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from gguf_worker.errors import GgufWorkerError

MOST_BYTES = 32 << 20
"""Of one answer."""

_BROKEN = (
    anyio.IncompleteRead,
    anyio.DelimiterNotFound,
    anyio.EndOfStream,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
)


class AsideError(GgufWorkerError):
    """Raised where there is no answer: the program refused, took too long, or died."""

    default_code = "aside"


class Aside:
    """A program of this package that answers JSON lines with JSON lines. It is started when it is first
    asked, and again after it ended. An async context manager: leaving it ends the process.
    """

    def __init__(self, module: str, *, timeout_s: float) -> None:
        self._module = module
        self._timeout_s = timeout_s
        self._lock = anyio.Lock()
        self._process: Process | None = None
        self._answers: BufferedByteReceiveStream | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def ask(self, question: Mapping[str, object]) -> str:
        """The text that the program answers. Raises AsideError."""
        async with self._lock:
            try:
                with anyio.fail_after(self._timeout_s):
                    answer = await self._exchange(question)
            except TimeoutError:
                await self._end()
                raise AsideError(f"it took longer than {self._timeout_s:g} s") from None
            except (OSError, ValueError, *_BROKEN) as error:
                raise AsideError(_why(await self._end(), error)) from None
            except BaseException:
                await self._end()  # its answer would be taken for that of the next question
                raise
        if "refused" in answer:
            raise AsideError(str(answer["refused"]))
        return str(answer["answer"])

    async def _exchange(self, question: Mapping[str, object]) -> dict[str, object]:
        if self._process is None:
            self._process = await anyio.open_process(
                [sys.executable, "-P", "-m", self._module],
                stderr=subprocess.DEVNULL,
                env=_without_secrets(),
                start_new_session=True,  # Ctrl-C is for this process to hear
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        if self._answers is None:
            self._answers = BufferedByteReceiveStream(process.stdout)
        await process.stdin.send(json.dumps(question).encode() + b"\n")
        answer = json.loads(await self._answers.receive_until(b"\n", MOST_BYTES))
        assert isinstance(answer, dict)
        return answer

    async def _end(self) -> int | None:
        """Kills the process; gives how it ended."""
        process, self._process, self._answers = self._process, None, None
        if process is None:
            return None
        with anyio.CancelScope(shield=True):
            if process.stdin is not None:
                await process.stdin.aclose()
            if process.returncode is None:
                with anyio.move_on_after(0.5):  # it ends by itself, where it can
                    await process.wait()
            if process.returncode is None:
                process.kill()
            await process.wait()
            await process.aclose()
        return process.returncode


def _without_secrets() -> dict[str, str]:
    """The environment, without our own variables: some hold keys, and the program needs none of them."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GGUF_WORKER_")}


def _why(status: int | None, error: Exception) -> str:
    if status == -signal.SIGALRM:
        return "it took too long"
    if status is not None and status != 0:
        return f"its process ended with status {status}"
    return str(error) or type(error).__name__
