"""Does a killed worker of the real engine come back as the same?"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

import anyio

from gguf_worker.errors import WorkerDied
from gguf_worker.identity import Identity
from gguf_worker.protocol.messages import Output
from gguf_worker.supervision.events import LoadProgress
from gguf_worker.supervision.settings import WorkerSettings
from gguf_worker.supervision.spec import ShardSpec
from gguf_worker.supervision.supervisor import Supervisor
from gguf_worker.supervision.worker import Worker
from gguf_worker.testing.figures.figure import Figure, milliseconds
from gguf_worker.testing.figures.latency import AT_ONCE

PROMPT = "The first rule of a good workshop is that every tool has its place, because"
TOKENS = 24
KILLED_AFTER = 8
"""Tokens that are drawn before the worker is killed in mid-decode."""
READY_WITHIN_S = 120.0


@dataclass(slots=True)
class Generated:
    """Tokens, and the logits' bits behind the last one."""

    tokens: list[int]
    logits: bytes = b""


async def killed_engine(model: Path, cache_dir: Path | None = None) -> Figure:
    """SIGKILL in mid-decode and in mid-load; then the same identity and, from the same prompt, the same
    bits."""
    spec = ShardSpec(str(model), cache_dir=None if cache_dir is None else str(cache_dir))
    settings = replace(WorkerSettings(), restart=AT_ONCE)
    supervisor = Supervisor(spec, settings=settings)
    async with supervisor as worker:
        identity, expected = worker.identity, await _generate(worker)
        latency_s = await _kill_in_mid_decode(worker)
        began = time.perf_counter()
        with anyio.fail_after(READY_WITHIN_S):
            second = await supervisor.wait_ready()
        ready_s = time.perf_counter() - began
        problems = await _differences("after a kill in mid-decode", second, identity, expected)
    problems += await _kill_in_mid_load(Supervisor(spec, settings=settings), identity, expected)
    return Figure(
        name="real engine killed",
        promise="back to ready with the same identity, and the next generation has the same bits",
        values={
            "in_mid_decode_told_after_ms": milliseconds(latency_s),
            "ready_again_after_s": round(ready_s, 2),
            "tokens_compared": 2 * TOKENS,
        },
        problems=tuple(problems),
    )


async def _kill_in_mid_decode(worker: Worker) -> float:
    """Seconds from SIGKILL to the decode that fails."""
    generated, told_at = Generated([]), 0.0

    async def decode() -> None:
        nonlocal told_at
        try:
            await _generate(worker, generated, n_tokens=1_000_000)
        except WorkerDied:
            told_at = time.perf_counter()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(decode)
        while (await worker.health()).state != "computing" or len(generated.tokens) < KILLED_AFTER:
            pass
        killed_at = time.perf_counter()
        os.kill(worker.pid, signal.SIGKILL)
    return told_at - killed_at


async def _kill_in_mid_load(supervisor: Supervisor, identity: Identity, expected: Generated) -> list[str]:
    async def kill() -> None:
        event = await supervisor.events().wait_for(LoadProgress)
        assert event.stamp.pid is not None
        os.kill(event.stamp.pid, signal.SIGKILL)

    with anyio.fail_after(READY_WITHIN_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kill)
            async with supervisor as worker:
                found = await _differences("after a kill in mid-load", worker, identity, expected)
                if supervisor.restarts != 1:
                    found.append(f"the worker was started again {supervisor.restarts} times, not once")
    return found


async def _generate(worker: Worker, into: Generated | None = None, n_tokens: int = TOKENS) -> Generated:
    generated = Generated([]) if into is None else into
    async with await worker.open_session() as session:
        tokens = await worker.tokenize(PROMPT)
        while len(generated.tokens) < n_tokens:
            result = await session.forward(tokens=tokens, output=Output.TOKEN)
            tokens = [result.token]
            generated.tokens += tokens
        result = await session.forward(tokens=tokens, output=Output.LOGITS)
        generated.logits = bytes(result.logits or b"")
    return generated


async def _differences(when: str, worker: Worker, identity: Identity, expected: Generated) -> list[str]:
    found = []
    if worker.identity != identity:
        found.append(f"{when}: another identity, {worker.identity}")
    if await _generate(worker) != expected:
        found.append(f"{when}: another generation")
    return found
