"""llama.cpp's own server, as built by `build.py`."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import anyio

from gguf_worker.testing.process import LineProcess
from kit import build
from kit.ours import Decoded
from kit.streaming import Event, events

_LISTENING = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")
DIFFERENCES = (
    "llama-server draws by a chain of one sampler (the likeliest token), takes no prompt out of a cache, "
    "keeps none and no check points of one, and is told not to end a text",
)
"""What a reader must know, for a section's notes."""


class LlamaServer:
    """An async context manager: inside, the model is loaded and warmed up. Raises EOFError, with what the
    server said last, where it does not start."""

    def __init__(
        self,
        model: Path,
        *,
        threads: int,
        slots: int = 1,
        n_ctx: int = 4096,
        n_batch: int = 512,
        n_ubatch: int = 128,
        rpc: Sequence[str] = (),
    ) -> None:
        """The defaults are those of a recipe; the slots share `n_ctx` KV cells, as our sessions do. With
        `rpc` the servers at these addresses hold all layers in equal parts."""
        self.command = command(
            model, threads=threads, slots=slots, n_ctx=n_ctx, n_batch=n_batch, n_ubatch=n_ubatch, rpc=rpc
        )
        self._stack = AsyncExitStack()
        self._port = 0
        self.load_s = 0.0
        """Seconds from the start of the process until it listens."""

    @property
    def pid(self) -> int:
        """Of the server."""
        return self._process.pid

    async def __aenter__(self) -> Self:
        began = time.perf_counter()
        async with AsyncExitStack() as stack:
            self._process = await stack.enter_async_context(LineProcess(self.command))
            line = await self._process.wait_line(lambda text: _LISTENING.search(text) is not None)
            self.load_s = time.perf_counter() - began
            self._port = port_in(line)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def decode(self, prompt: Sequence[int], n_tokens: int) -> Decoded:
        """Greedy and streamed, timed by its reader: `n_tokens` after the one that the prefill gives."""
        began = time.perf_counter()
        found = [event async for event in events(self._port, "/completion", body(prompt, n_tokens + 1))]
        return decoded(found, began, n_tokens + 1)

    async def sessions(
        self, prompts: Sequence[Sequence[int]], n_tokens: int
    ) -> tuple[float, list[tuple[int, ...]]]:
        """A stream for each prompt, all at once. Seconds until all have ended, prefills included, and each
        one's tokens: as `decode` gives them."""
        found: dict[int, tuple[int, ...]] = {}

        async def one(index: int, prompt: Sequence[int]) -> None:
            found[index] = (await self.decode(prompt, n_tokens)).tokens

        began = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for index, prompt in enumerate(prompts):
                tasks.start_soon(one, index, prompt)
        return time.perf_counter() - began, [found[index] for index in range(len(prompts))]


def command(
    model: Path, *, threads: int, slots: int, n_ctx: int, n_batch: int, n_ubatch: int, rpc: Sequence[str] = ()
) -> list[str]:
    """How it is started."""
    sizes = {"-c": n_ctx, "-b": n_batch, "-ub": n_ubatch, "-t": threads, "-tb": threads, "-np": slots}
    words = [str(build.llama_server()), "-m", str(model), "--host", "127.0.0.1", "--port", "0"]
    words += [word for name, size in sizes.items() for word in (name, str(size))]
    words += ["-fa", "on", "--kv-unified", "--no-webui", "--cache-ram", "0", "--ctx-checkpoints", "0"]
    if rpc:
        shares = ",".join("1" for _ in rpc)
        words += ["--rpc", ",".join(rpc), "-ngl", "all", "--split-mode", "layer", "--tensor-split", shares]
    else:
        words += ["-ngl", "0"]
    return words


def port_in(line: str) -> int:
    """Of the line that says where it listens."""
    found = _LISTENING.search(line)
    assert found is not None
    return int(found[1])


def body(prompt: Sequence[int], n_tokens: int) -> dict[str, Any]:
    """The request of a greedy text of exactly so many tokens."""
    return {
        "prompt": list(prompt),
        "n_predict": n_tokens,
        "temperature": 0,
        "samplers": ["top_k"],  # the quickest way to the likeliest token
        "top_k": 1,
        "ignore_eos": True,
        "cache_prompt": False,
        "return_tokens": True,
        "stream": True,
    }


def decoded(found: Sequence[Event], began: float, n_tokens: int) -> Decoded:
    """What the events say. Raises RuntimeError where a token is missing: the server keeps parts of a
    character until it is whole, and then tells of the last one only."""
    told = [event for event in found if event.content.get("tokens")]
    tokens = tuple(token for event in told for token in event.content["tokens"])
    if len(tokens) != n_tokens:
        last = {name: value for name, value in found[-1].content.items() if name != "generation_settings"}
        raise RuntimeError(f"llama-server told of {len(tokens)} tokens of {n_tokens}; its last event: {last}")
    return Decoded(tokens=tokens, first_s=told[0].at - began, rest_s=told[-1].at - told[0].at)
