"""When does a supervisor stop to start a worker that dies each time?"""

from __future__ import annotations

from dataclasses import replace

from gguf_worker.errors import StartupError
from gguf_worker.supervision.events import GaveUp
from gguf_worker.supervision.policy import RestartPolicy
from gguf_worker.supervision.settings import WorkerSettings
from gguf_worker.supervision.spec import ShardSpec
from gguf_worker.supervision.supervisor import Supervisor
from gguf_worker.testing.faults import FAKE_MODEL, load_crash, plan
from gguf_worker.testing.figures.figure import Figure

LIMITS = (0, 1, 3, 8)


async def crash_loops() -> Figure:
    """Workers that crash in every load, under policies with different limits."""
    started, problems, reason = [], [], ""
    for limit in LIMITS:
        policy = RestartPolicy(max_restarts=limit, backoff_initial_s=0.001, backoff_max_s=0.001)
        spec = ShardSpec(FAKE_MODEL, engine="fake", fault_plan=plan(load_crash()))
        supervisor = Supervisor(spec, settings=replace(WorkerSettings(), restart=policy))
        try:
            async with supervisor:
                problems.append(f"with {limit} restarts it became ready")
        except StartupError:
            started.append(supervisor.generation)
        gave_up = [event async for event in supervisor.events() if isinstance(event, GaveUp)]
        reason = gave_up[-1].reason if gave_up else ""
        if supervisor.generation != limit + 1:
            problems.append(f"with {limit} restarts it was started {supervisor.generation} times")
        if "SIGABRT" not in reason:
            problems.append(f"with {limit} restarts the reason has no cause: {reason!r}")
    return Figure(
        name="restart limit",
        promise="a worker that crashes in a loop is given up after exactly N restarts, with its causes",
        values={
            "restarts_allowed": ", ".join(map(str, LIMITS)),
            "processes_started": ", ".join(map(str, started)),
            "last_reason": reason,
        },
        problems=tuple(problems),
    )
