"""Many works at once on a mesh whose processes are killed at random moments."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import anyio

from gguf_worker.errors import GgufWorkerError
from gguf_worker.generation.generate import Step
from gguf_worker.generation.replay import ReplaySettings
from gguf_worker.generation.route import Route
from gguf_worker.node.tracker.formation import Wanted
from gguf_worker.testing.mesh.site import PROMPT, SAMPLING, Site

AT_ONCE = 16
"""Works that go on side by side."""
WORKS_PER_ROUTE = 25
"""Before a client forms its route anew."""
MOST_TOKENS = 6
BETWEEN_BLOWS_S = 1.0
"""On average."""
OF_NODES = 0.05
"""Blows that kill a node and not a worker."""
CANCELLED = 0.1
"""Works that are left in the middle."""
WORK_S = 90.0
"""No work may take longer."""
REPLAY = ReplaySettings(max_losses=1000)
"""Whoever is struck that often must not give up."""


@dataclass(slots=True)
class Storm:
    """What became of the works."""

    ended: Counter[str] = field(default_factory=Counter)
    """By finish reason, or by the code of an error."""
    blows: Counter[str] = field(default_factory=Counter)
    replays: int = 0
    errors: list[str] = field(default_factory=list)
    """Of works that ended with one."""
    problems: list[str] = field(default_factory=list)
    on_work: Callable[[Storm], None] = lambda _: None


async def storm(
    site: Site,
    expected: Sequence[Step],
    n_works: int,
    seed: int,
    on_work: Callable[[Storm], None] = lambda _: None,
) -> Storm:
    """Runs so many works, half of them relayed. A work that ends with an error is counted; one with another
    text, or without an end, is a problem. `on_work` gets what became of them so far, after each."""
    found, chance = Storm(on_work=on_work), random.Random(seed)
    numbers = iter(range(n_works))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_strike, site, random.Random(seed + 1), found)
        async with anyio.create_task_group() as clients:
            for index in range(AT_ONCE):
                clients.start_soon(
                    _client, site, index % 2 == 0, numbers, expected, random.Random(chance.random()), found
                )
        tasks.cancel_scope.cancel()
    return found


async def _client(
    site: Site,
    is_direct: bool,
    numbers: Iterator[int],
    expected: Sequence[Step],
    chance: random.Random,
    found: Storm,
) -> None:
    mesh = site.direct if is_direct else site.relayed
    while True:
        async with mesh.route(await mesh.plan(Wanted()), replay=REPLAY) as route:
            for _ in range(WORKS_PER_ROUTE):
                if next(numbers, None) is None:
                    return
                await _work(route, expected, chance, found)


async def _work(route: Route, expected: Sequence[Step], chance: random.Random, found: Storm) -> None:
    n_tokens = chance.randint(1, MOST_TOKENS)
    leave_at = chance.randrange(n_tokens) if chance.random() < CANCELLED else None
    steps: list[Step] = []
    ended = "no end"
    try:
        with anyio.fail_after(WORK_S):
            tokens = await route.tokenize(PROMPT)
            async with route.generate(tokens, max_tokens=n_tokens, sampling=SAMPLING) as generation:
                async for step in generation:
                    steps.append(step)
                    if step.index == leave_at:
                        break
        ended = generation.record.finish_reason
        found.replays += generation.record.replays
    except GgufWorkerError as error:
        ended = error.code
        found.errors.append(str(error))
    except TimeoutError:
        found.problems.append(f"a work did not end within {WORK_S:g} s")
    found.ended[ended] += 1
    if [_drawn(step) for step in steps] != [_drawn(step) for step in expected[: len(steps)]]:
        found.problems.append(f"a text of {len(steps)} tokens is another one")
    found.on_work(found)


def _drawn(step: Step) -> tuple[object, ...]:
    """All of a step but how it ended, which depends on how many were asked for."""
    return step.token, step.logprob, step.top


async def _strike(site: Site, chance: random.Random, found: Storm) -> None:
    """Kills workers, and now and then a node, which is started again; one stage is never without both."""
    while True:
        await anyio.sleep(chance.expovariate(1 / BETWEEN_BLOWS_S))
        name = chance.choice(list(site.nodes))
        if chance.random() < OF_NODES:
            found.blows["node"] += 1
            site.nodes[name].signal(signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await site.restart(name)
        else:
            found.blows["worker"] += 1
            site.nodes[name].kill_worker()
