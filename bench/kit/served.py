"""Our side over HTTP: `gguf-worker serve --http` in a process of its own, as a user starts it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from gguf_worker.testing.process import LineProcess
from kit.streaming import Event, events


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """One greedy text, timed by its reader. The API tells no token ids."""

    text: str
    n_tokens: int
    first_s: float
    """From the begin to the first piece of text."""
    rest_s: float
    """From the first piece to the last one."""

    @property
    def tokens_per_s(self) -> float:
        """Of the decode alone."""
        return (self.n_tokens - 1) / self.rest_s


class Served:
    """An async context manager: inside, the workers are ready. Raises EOFError, with what it said last, where
    it does not start."""

    def __init__(self, model: Path, *, threads: int, shards: int = 1, further: Sequence[str] = ()) -> None:
        """`further` are more words of the command line."""
        self._command = [sys.executable, "-m", "gguf_worker.cli", "serve", str(model), "--json"]
        self._command += ["--threads", str(threads), "--shards", str(shards)]
        self._command += ["--http", "127.0.0.1:0", *further]
        self._stack = AsyncExitStack()
        self._port = 0

    @property
    def pid(self) -> int:
        """Of the supervisor."""
        return self._process.pid

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._process = await stack.enter_async_context(LineProcess(self._command))
            line = await self._process.wait_line(lambda text: '"http_listening"' in text)
            self._port = int(json.loads(line)["address"].rpartition(":")[2])
            await self._process.wait_line(lambda text: '"gateway_ready"' in text)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def decode(self, prompt: Sequence[int], n_tokens: int) -> Streamed:
        """Greedy and streamed: `n_tokens` after the one that the prefill gives, or less where the text
        ends."""
        began = time.perf_counter()
        asked = body(prompt, n_tokens + 1)
        return streamed([event async for event in events(self._port, "/v1/completions", asked)], began)


def body(prompt: Sequence[int], n_tokens: int) -> dict[str, Any]:
    """The request of a greedy text."""
    return {
        "prompt": list(prompt),
        "max_tokens": n_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def streamed(found: Sequence[Event], began: float) -> Streamed:
    """What the events say."""
    told = [event for event in found if _text(event)]
    usage = next(event.content["usage"] for event in reversed(found) if event.content.get("usage"))
    return Streamed(
        text="".join(map(_text, told)),
        n_tokens=usage["completion_tokens"],
        first_s=told[0].at - began,
        rest_s=told[-1].at - told[0].at,
    )


def _text(event: Event) -> str:
    choices = event.content.get("choices") or [{"text": ""}]
    return str(choices[0]["text"])
