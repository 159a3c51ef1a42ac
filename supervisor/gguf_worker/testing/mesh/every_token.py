"""A text over nodes in which something is killed after every token: it goes on, and is the same text."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from gguf_worker.errors import GgufWorkerError
from gguf_worker.generation.generate import Step
from gguf_worker.generation.replay import ReplaySettings
from gguf_worker.generation.route import Route
from gguf_worker.identity.recipe import Recipe
from gguf_worker.node.mesh import MeshSource
from gguf_worker.node.tracker.formation import Wanted
from gguf_worker.protocol.messages import Sampling
from gguf_worker.supervision.spec import ShardSpec
from gguf_worker.testing.figures.figure import percentile
from gguf_worker.testing.mesh.site import PROMPT, Held, Site

N_TOKENS = 64
SAMPLINGS = {
    "greedy": Sampling(top_logprobs=3),
    "seeded": Sampling(temperature=0.8, seed=7, top_p=0.95, repeat_penalty=1.1, top_logprobs=3),
}
REPLAY = ReplaySettings(max_losses=1_000_000)
TEXT_S = 1200.0
"""No text may take longer, whatever is killed."""
DEMO_RECIPE = Recipe(n_ctx=1024, n_threads=1)


def demo(model: Path, cache: Path | None = None) -> Held:
    """The demo model on the nodes; shard files are kept in `cache`, else where they usually are."""
    options: tuple[str, ...] = ("--ctx-size", str(DEMO_RECIPE.n_ctx), "--threads", str(DEMO_RECIPE.n_threads))
    if cache is not None:
        options += ("--cache-dir", str(cache))
    return Held(model=str(model), cuts=(10, 20, 30), row_bytes=4 * 576, options=options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One text, and what was killed in it."""

    name: str
    tokens: int
    """Compared with the undisturbed text: ids, bytes and log-probabilities."""
    kills: int
    stages_brought_back: int
    pause_ms_p50: float
    """Between two tokens."""
    pause_ms_max: float
    took_s: float
    problems: tuple[str, ...]


async def every_token(
    site: Site,
    whole: ShardSpec,
    n_tokens: int = N_TOKENS,
    on_sweep: Callable[[Sweep], None] = lambda _: None,
) -> list[Sweep]:
    """A random worker under a node of the route is killed after each token, and then a node while another one
    holds its layers: greedy and seeded. `whole` is the model in one worker of this process, which says what
    the text is. `on_sweep` gets each text when it has ended."""
    sweeps = []
    expected = await _undisturbed(whole, n_tokens)
    workers, nodes = Workers(site=site), Nodes(site=site)
    for what, blow in (("a worker", workers.blow), ("a node", nodes.blow)):
        for name, sampling in SAMPLINGS.items():
            title = f"{what} killed after each token, {name}"
            sweeps.append(await _sweep(site, title, expected[name], sampling, n_tokens, blow))
            on_sweep(sweeps[-1])
    await nodes.wait_back()
    return sweeps


async def _undisturbed(whole: ShardSpec, n_tokens: int) -> dict[str, list[Step]]:
    async with Route.start([whole]) as route:
        tokens = await route.tokenize(PROMPT)
        return {
            name: [step async for step in route.generate(tokens, max_tokens=n_tokens, sampling=sampling)]
            for name, sampling in SAMPLINGS.items()
        }


Blow = Callable[[Route], Awaitable[None]]


@dataclass(kw_only=True)
class Workers:
    """Kills the worker under a node of the route; nobody else has the layers of two of them."""

    site: Site
    chance: random.Random = field(default_factory=lambda: random.Random(1))

    async def blow(self, route: Route) -> None:
        self.site.nodes[_node(route, self.chance.randrange(3))].kill_worker()


@dataclass(kw_only=True)
class Nodes:
    """Kills the node in the middle of the route, and starts it again; the other one of the two stands in."""

    site: Site
    back: anyio.Event = field(default_factory=anyio.Event)

    def __post_init__(self) -> None:
        self.back.set()

    async def blow(self, route: Route) -> None:
        await self.wait_back()
        victim, self.back = _node(route, 1), anyio.Event()
        self.site.nodes[victim].signal(signal.SIGKILL)
        self.site.tasks.start_soon(self._restart, victim)

    async def wait_back(self) -> None:
        """Returns when both are there."""
        await self.back.wait()

    async def _restart(self, name: str) -> None:
        await self.site.restart(name)
        self.back.set()


def _node(route: Route, stage: int) -> str:
    """Who fills a place now."""
    source = route.sources[stage]
    assert isinstance(source, MeshSource)
    return source.node


async def _sweep(
    site: Site, name: str, expected: Sequence[Step], sampling: Sampling, n_tokens: int, blow: Blow
) -> Sweep:
    started, steps, kills, problems = time.perf_counter(), list[Step](), 0, list[str]()
    async with site.direct.route(await site.direct.plan(Wanted()), replay=REPLAY) as route:
        tokens = await route.tokenize(PROMPT)
        generation = route.generate(tokens, max_tokens=n_tokens, sampling=sampling)
        try:
            with anyio.fail_after(TEXT_S):
                async for step in generation:
                    steps.append(step)
                    if step.finish_reason is None:
                        await blow(route)
                        kills += 1
        except (GgufWorkerError, TimeoutError) as error:
            problems.append(f"after {len(steps)} tokens: {error or 'no end'}")
    if steps != expected:
        first = _first_difference(steps, expected)
        problems.append(f"another stream from step {first} on, of {len(steps)}")
    pauses = generation.record.token_us or [0]
    return Sweep(
        name=name,
        tokens=len(steps),
        kills=kills,
        stages_brought_back=generation.record.replays,
        pause_ms_p50=round(percentile(pauses, 50) / 1e3, 1),
        pause_ms_max=round(max(pauses) / 1e3, 1),
        took_s=round(time.perf_counter() - started, 1),
        problems=tuple(problems),
    )


def _first_difference(steps: Sequence[Step], expected: Sequence[Step]) -> int:
    same = (one == other for one, other in zip(steps, expected, strict=False))
    return next((index for index, is_same in enumerate(same) if not is_same), min(len(steps), len(expected)))
