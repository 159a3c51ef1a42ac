"""llama.cpp in process: llama-cpp-python's library through its own calls, in a child that does only this."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from gguf_worker.testing.process import LineProcess
from kit import build
from kit.ours import Decoded

MOST_ANSWER_BYTES = 1 << 20
_CHILD = Path(__file__).with_name("library_child.py")


class Library:
    """An async context manager: inside, the model is loaded. While it is not asked it sleeps. Raises
    EOFError, with what the child said last, where it ended."""

    def __init__(
        self,
        model: Path,
        *,
        threads: int,
        n_ctx: int = 4096,
        n_batch: int = 512,
        n_ubatch: int = 128,
        max_sessions: int = 4,
        flash_attn: bool = True,
        rpc: Sequence[str] = (),
    ) -> None:
        """The defaults are those of a recipe. With `rpc`, addresses of RPC servers, the built library is
        used, and the servers hold all layers in equal parts."""
        settings = {
            "model": str(model),
            "threads": threads,
            "n_ctx": n_ctx,
            "n_batch": n_batch,
            "n_ubatch": n_ubatch,
            "max_sessions": max_sessions,
            "flash_attn": flash_attn,
            "rpc": list(rpc),
        }
        # -P: the kit's own modules are not to be found under names that others may want.
        command = [sys.executable, "-P", str(_CHILD), json.dumps(settings)]
        self._process = LineProcess(command, environment=_environment(with_rpc=bool(rpc)))
        self._stack = AsyncExitStack()
        self.load_s = 0.0
        """Seconds that the child took to load the model and make a context."""
        self.layers: dict[str, int] = {}
        """How many layers each device has, by its name; the head counts as one."""

    @property
    def pid(self) -> int:
        """Of the child."""
        return self._process.pid

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            process = await stack.enter_async_context(self._process)
            line = await process.wait_line(lambda text: text.startswith("listening "))
            self._stream = await anyio.connect_tcp("127.0.0.1", int(line.split()[1]))
            await stack.enter_async_context(self._stream)
            self._answers = BufferedByteReceiveStream(self._stream)
            ready = await self._call("ready")
            self.load_s, self.layers = ready["load_s"], ready["layers"]
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def decode(self, prompt: Sequence[int], n_tokens: int) -> Decoded:
        """Greedy, timed in the child: `n_tokens` after the one that the prefill gives, never ended early."""
        found = await self._call("decode", prompt=list(prompt), n_tokens=n_tokens)
        return Decoded(tokens=tuple(found["tokens"]), first_s=found["first_s"], rest_s=found["rest_s"])

    async def prefill(self, tokens: Sequence[int]) -> float:
        """Seconds until the logits of the last token are there."""
        return float((await self._call("prefill", tokens=list(tokens)))["seconds"])

    async def sessions(
        self, prompts: Sequence[Sequence[int]], n_tokens: int
    ) -> tuple[float, list[tuple[int, ...]]]:
        """Prefills the prompts one after the other, then decodes all in one batch. Seconds for all of it, and
        each session's tokens: as `decode` gives them."""
        found = await self._call("sessions", prompts=[list(prompt) for prompt in prompts], n_tokens=n_tokens)
        return float(found["seconds"]), [tuple(tokens) for tokens in found["tokens"]]

    async def memory(self) -> dict[str, dict[str, int]]:
        """Bytes (rss, pss, private, anonymous) of the child when it was `empty` (everything imported), just
        `loaded`, and `now`."""
        return await self._call("memory")

    async def _call(self, name: str, **arguments: object) -> dict[str, Any]:
        try:
            await self._stream.send(json.dumps({"call": name, **arguments}).encode() + b"\n")
            line = await self._answers.receive_until(b"\n", MOST_ANSWER_BYTES)
        except (anyio.IncompleteRead, anyio.BrokenResourceError, anyio.EndOfStream):
            await self._process.wait()
            raise EOFError("it ended: " + " / ".join(self._process.lines[-5:])) from None
        found: dict[str, Any] = json.loads(line)
        return found


def _environment(*, with_rpc: bool) -> dict[str, str]:
    """llama-cpp-python loads the library from the folder that this variable names."""
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    environment.pop("LLAMA_CPP_LIB_PATH", None)
    if with_rpc:
        environment["LLAMA_CPP_LIB_PATH"] = str(build.library_folder())
    return environment
