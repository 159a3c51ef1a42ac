"""A text over a mesh, and a blow at one moment of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import anyio

from gguf_worker.errors import GgufWorkerError
from gguf_worker.generation.generate import Step
from gguf_worker.generation.record import GenerationRecord
from gguf_worker.node.mesh import Mesh
from gguf_worker.node.tracker.formation import RoutePlan, Wanted
from gguf_worker.testing.mesh.site import PROMPT, SAMPLING, Site
from gguf_worker.testing.mesh.witness import Seen, nothing

Blow = Callable[["Told"], Awaitable[None]]
"""Takes the text that it falls upon."""


@dataclass(kw_only=True)
class Told:
    """What became of a text."""

    plan: RoutePlan
    steps: list[Step] = field(default_factory=list)
    record: GenerationRecord | None = None
    error: GgufWorkerError | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Cancels it."""
    struck: str = ""
    """The node that the blow was about; empty where it did not come."""

    @property
    def losses(self) -> int:
        """Stages that were brought back."""
        return 0 if self.record is None else self.record.replays


async def struck_text(
    site: Site,
    mesh: Mesh,
    *,
    n_tokens: int,
    blow: Blow,
    stage: int = 1,
    at_forward: int = 12,
    repeat_prompt: int = 1,
) -> Told:
    """Generates over the mesh. When so many forwards went to a stage's node, the blow falls: while the last
    of them is on its way or being computed. What is lost with an error is told, never raised."""
    plan = await mesh.plan(Wanted())
    told = Told(plan=plan)
    victim = plan.stages[stage].node

    async def strike(node: str, seen: Seen) -> None:
        if node == victim and seen.forwards == at_forward and not told.struck:
            told.struck = node
            await blow(told)

    site.witness.on_forward = strike
    try:
        async with mesh.route(plan) as route:
            tokens = await route.tokenize(PROMPT) * repeat_prompt
            async with route.generate(tokens, max_tokens=n_tokens, sampling=SAMPLING) as generation:
                told.record = generation.record
                with told.scope:
                    async for step in generation:
                        told.steps.append(step)
    except GgufWorkerError as error:
        told.error = error
    finally:
        site.witness.on_forward = nothing
    return told


def text_problems(told: Told, expected: Sequence[Step]) -> list[str]:
    """How a text differs from the undisturbed one; nothing where it is the same to the last bit."""
    problems = []
    if not told.struck:
        problems.append("the blow did not fall")
    if told.error is not None:
        problems.append(f"it ended with {told.error.code}: {told.error.message}")
    for index, (step, wanted) in enumerate(zip(told.steps, expected, strict=False)):
        if step != wanted:
            problems.append(f"step {index} is {step}, and undisturbed it is {wanted}")
            break
    if not told.error and len(told.steps) != len(expected):
        problems.append(f"{len(told.steps)} steps of {len(expected)}")
    return problems
