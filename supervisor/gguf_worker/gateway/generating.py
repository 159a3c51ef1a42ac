"""Runs the choices of a request through a model's route."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import anyio

from gguf_worker._tasks import plain_task_group
from gguf_worker.gateway.answers import Usage
from gguf_worker.gateway.figures import Figures
from gguf_worker.gateway.model import ServedModel
from gguf_worker.gateway.options import Options
from gguf_worker.gateway.pieces import ChoiceText, Piece
from gguf_worker.generation.generate import Generation
from gguf_worker.logs import bound
from gguf_worker.protocol.messages import Sampling
from gguf_worker.telemetry import begin_generation, observe
from gguf_worker.work import Work, new_id

TakePiece = Callable[[int, Piece], Awaitable[None]]
"""Gets the number of a choice, and what it got more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a request wants generated: every prompt, so many times each."""

    prompts: Sequence[tuple[int, ...]]
    """Their tokens."""
    options: Options
    grammar: str
    work: Work
    """Of the request; each choice has a work id of its own."""


async def run(model: ServedModel, job: Job, figures: Figures, take: TakePiece) -> Usage:
    """Generates every choice, as many at a time as there is room for; choices of the first prompt come first.
    Whoever cancels this has every stage give up what it computes for them."""
    options = job.options
    limits = [model.max_tokens(len(prompt), options) for prompt in job.prompts]
    rows = max(len(prompt) + limit for prompt, limit in zip(job.prompts, limits, strict=True)) - 1
    n_choices = len(job.prompts) * options.best_of
    need = model.need(n_choices, rows)
    usage = Usage(prompt=sum(map(len, job.prompts)))

    async def choose(index: int, limiter: anyio.Semaphore) -> None:
        place = index // options.best_of
        sampling = options.sampling_of(index, job.grammar or options.sampling.grammar)
        work = replace(job.work, work_id=new_id())
        async with limiter:
            drawn = await _choose(
                model, job.prompts[place], limits[place], sampling, work, options.stops, figures,
                lambda piece: take(index, piece),
            )  # fmt: skip
        usage.completion += drawn  # in one go: other choices end meanwhile

    async with model.admission.admitted(need, job.work):
        limiter = anyio.Semaphore(need.slots, fast_acquire=True)
        if n_choices == 1:
            await choose(0, limiter)
            return usage
        async with plain_task_group() as tasks:
            for index in range(n_choices):
                tasks.start_soon(choose, index, limiter)
    return usage


async def _choose(
    model: ServedModel,
    prompt: Sequence[int],
    max_tokens: int,
    sampling: Sampling,
    work: Work,
    stops: Sequence[str],
    figures: Figures,
    take: Callable[[Piece], Awaitable[None]],
) -> int:
    """One choice; gives the number of tokens that were drawn."""
    span = begin_generation(work, model=model.name)
    generation = model.route.generate(prompt, max_tokens=max_tokens, sampling=sampling, work=span.work)
    try:
        with bound(work_id=work.work_id), figures.following(generation.record, model.name):
            async with generation:
                await _read(generation, ChoiceText(stops), take)
    finally:
        observe(generation.record, span)
    return len(generation.tokens)


async def _read(generation: Generation, text: ChoiceText, take: Callable[[Piece], Awaitable[None]]) -> None:
    async for step in generation:
        piece = text.feed(step)
        if text.stopped:
            await generation.stop()
        await take(piece)
        if text.stopped:
            return
