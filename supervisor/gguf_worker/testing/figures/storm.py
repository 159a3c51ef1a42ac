"""Does every request come out once, whenever its worker dies?"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import anyio
import anyio.lowlevel

from gguf_worker.errors import GgufWorkerError
from gguf_worker.process.exit import ExitCause
from gguf_worker.protocol.messages import Output
from gguf_worker.supervision.events import WorkerEnded
from gguf_worker.supervision.settings import WorkerSettings
from gguf_worker.supervision.spec import ShardSpec
from gguf_worker.supervision.supervisor import Supervisor
from gguf_worker.supervision.worker import Worker
from gguf_worker.testing.calls import Calls
from gguf_worker.testing.faults import FAKE_MODEL, plan, slow
from gguf_worker.testing.figures.figure import Figure
from gguf_worker.testing.figures.latency import AT_ONCE

SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)
CALLERS = 8
LONGEST_LIFE_S = 0.05
READY_FIRST = 0.8
"""Part of the kills that wait until the worker is ready; the others meet its start as well."""
STEP_MS = 1
PROMPT = (2, 3, 4)
CALL_DEADLINE_S = 60.0
"""A request that was lost would be found by this."""


@dataclass(slots=True)
class Storm:
    """Callers that never pause, and workers that are killed at random moments."""

    kills: int
    chance: random.Random
    calls: Calls
    supervisor: Supervisor
    wrong: int = 0
    """Answers that were not the right ones."""
    is_over: bool = False

    async def call(self, expected: bytes) -> None:
        """Opens a session, forwards, closes it, and again, on whatever worker there is."""
        while not self.is_over:
            worker = await self.supervisor.wait_ready()
            opened = await self.calls.make("open", worker.open_session)
            if opened.error is None:
                await self._use(worker, opened.value.id, expected)

    async def _use(self, worker: Worker, session: int, expected: bytes) -> None:
        forward = await self.calls.make(
            "forward",
            lambda: worker.forward(session=session, position=0, output=Output.LOGITS, tokens=PROMPT),
        )
        if forward.error is None and forward.value.logits != expected:
            self.wrong += 1
        await self.calls.make("close", lambda: worker.close_session(session=session))

    async def kill(self) -> None:
        """Ends one worker after the other, each at a random moment of its life or its start."""
        ends = self.supervisor.events(from_start=False)
        for _ in range(self.kills):
            if self.chance.random() < READY_FIRST:
                await self.supervisor.wait_ready()
            await anyio.sleep(self.chance.random() * LONGEST_LIFE_S)
            os.kill(await self._living(), self.chance.choice(SIGNALS))
            await ends.wait_for(WorkerEnded)
        self.is_over = True

    async def _living(self) -> int:
        """The newest process, which nobody has reaped, so the number is still its own."""
        supervisor = self.supervisor
        while supervisor.pid is None or supervisor.exit is not None:
            await anyio.lowlevel.checkpoint()
        return supervisor.pid


async def random_kills(kills: int, seed: int) -> Figure:
    """Workers are killed at random under concurrent requests; each request is followed by its work id."""
    spec = ShardSpec(FAKE_MODEL, engine="fake", max_sessions=CALLERS, fault_plan=plan(slow(STEP_MS)))
    settings = replace(WorkerSettings(), restart=AT_ONCE, request_timeout_s=CALL_DEADLINE_S)
    supervisor = Supervisor(spec, settings=settings)
    with Calls() as calls:
        storm = Storm(kills=kills, chance=random.Random(seed), calls=calls, supervisor=supervisor)
        async with supervisor as worker:
            expected = await _logits(worker)
            async with anyio.create_task_group() as tasks:
                for _ in range(CALLERS):
                    tasks.start_soon(storm.call, expected)
                tasks.start_soon(storm.kill)
            causes = (await supervisor.metrics()).causes
        problems = calls.problems()
    answered = sum(call.error is None for call in calls.all)
    died = sum(_code(call.error) == "worker_died" for call in calls.all)
    others = Counter(_code(call.error) for call in calls.all) - Counter({"": answered, "worker_died": died})
    if storm.wrong:
        problems.append(f"{storm.wrong} answers were wrong")
    if others:
        problems.append(f"calls failed otherwise: {dict(others)}")
    return Figure(
        name="random kills under load",
        promise="every request is resolved exactly once, none lost, none twice",
        values={
            "kills": kills,
            "seed": seed,
            "restarts": supervisor.restarts,
            "calls": len(calls.all),
            "answered": answered,
            "failed_with_death": died,
            "lost": len(calls.waiting),
            "twice": calls.twice,
            "wrong_answers": storm.wrong,
        },
        problems=tuple(problems + _unexpected(causes, kills)),
    )


async def _logits(worker: Worker) -> bytes:
    async with await worker.open_session() as session:
        return bytes((await session.forward(tokens=PROMPT, output=Output.LOGITS)).logits or b"")


def _code(error: GgufWorkerError | None) -> str:
    return "" if error is None else error.code


def _unexpected(causes: Mapping[str, int], kills: int) -> list[str]:
    """Every end so far was one of our kills, and is known as a signal that the supervisor did not send."""
    if causes == {ExitCause.SIGNAL_OTHER: kills}:
        return []
    return [f"{kills} kills were classified as {dict(causes)}"]
