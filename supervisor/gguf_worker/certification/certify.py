"""Certifies a recipe: the unsplit model and each way to cut it run the same rows; every logit is compared."""

from __future__ import annotations

import datetime
import platform
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

from gguf_worker._machine import describe_machine
from gguf_worker._schema import Buffer
from gguf_worker.certification.certificate import Certificate, CutEvidence
from gguf_worker.certification.comparison import Comparison, compare
from gguf_worker.certification.recording import Key, Recording
from gguf_worker.certification.runs import (
    ALONE,
    BATCHED,
    STEPWISE,
    Sink,
    continue_greedily,
    run_alone,
    run_batched,
    run_stepwise,
)
from gguf_worker.certification.workload import Sequence, default_prompts, random_tokens
from gguf_worker.errors import GgufWorkerError
from gguf_worker.generation import Route
from gguf_worker.protocol.messages import Inspection
from gguf_worker.supervision.environment import GIVES_WAY
from gguf_worker.supervision.policy import RestartPolicy
from gguf_worker.supervision.settings import WorkerSettings
from gguf_worker.supervision.spec import ShardSpec

LARGEST_BLOCK_BYTES = 192 * 1024 * 1024
"""Most logits that one forward is asked for."""
FRAME_BYTES = LARGEST_BLOCK_BYTES + 1024 * 1024
LEAST_PROMPT_ROWS = 2

OnProgress = Callable[[str, int, int], None]
"""What is done now, and how many parts of how many are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifyPlan:
    """What shall be certified."""

    spec: ShardSpec
    """The whole model with the recipe; its layers are not looked at."""
    found: Inspection
    """What the artifact is."""
    cuts: tuple[tuple[int, ...], ...]
    """Each a way to cut the model."""
    prompts: tuple[str, ...] = default_prompts()
    n_random: int = 320
    """Rows of a prompt of random tokens: more than one padded block of the KV cache."""
    n_steps: int = 24
    """Rows decoded after each prompt."""
    command: str = ""
    """How it was asked for, for the certificate."""


async def certify(plan: CertifyPlan, *, on_progress: OnProgress | None = None) -> Certificate:
    """Runs the unsplit model once and then each cut, one after the other, and compares every logit.

    The logits of the unsplit model are kept in an unnamed temporary file, so that one model is loaded at a
    time. Raises what Route raises, and GgufWorkerError where the context is too small to compare anything.
    """
    report = on_progress or _no_report
    with Recording() as unsplit:
        async with _route(plan, ()) as route:
            workload = await _workload(plan, route)
            await _run(route, workload, unsplit.put, "unsplit", report)
            (worker,) = route.workers
            recipe, build, model = worker.identity.recipe, worker.hello.build, worker.model
        evidence = [await _certify_cut(plan, cuts, workload, unsplit, report) for cuts in plan.cuts]
        return Certificate(
            artifact=plan.found.artifact,
            files=tuple((Path(file.path).name, file.bytes, file.sha256) for file in plan.found.files),
            model=asdict(model),
            recipe=recipe,
            build=_stable(asdict(build)),
            machine={**describe_machine(), "python": platform.python_version()},
            workload=_describe(workload),
            cuts=tuple(evidence),
            batch_invariance=_between(unsplit, BATCHED, ALONE),
            chunk_invariance=_stepwise_against_alone(unsplit),
            date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            command=plan.command,
        )


def _no_report(_what: str, _done: int, _total: int) -> None:
    pass


@asynccontextmanager
async def _route(plan: CertifyPlan, cuts: tuple[int, ...]) -> AsyncIterator[Route]:
    """The stages of one way to cut, with one session for each sequence of the batched run and one for its
    filler. Where sessions cannot be trimmed, which only a loaded model says, it is started again with a
    further one for each sequence: see `Seat`."""
    n_sequences = len(plan.prompts) + 1
    async with _start(plan, cuts, n_sequences + 1) as route:
        if all(worker.capacity.can_trim for worker in route.workers):
            yield route
            return
    async with _start(plan, cuts, 2 * n_sequences + 1) as route:
        yield route


def _start(plan: CertifyPlan, cuts: tuple[int, ...], n_sessions: int) -> Route:
    specs = [
        replace(
            plan.spec,
            layers=layers,
            artifact=plan.found.artifact,
            max_sessions=n_sessions,
            n_stages=1,  # so that no stage leaves a row out of the step that all of them are to share
        )
        for layers in pairwise((0, *cuts, plan.found.n_layer))
    ]
    # What a worker that died had computed is gone, and so is the certificate: there is nothing to restart it
    # for.
    settings = WorkerSettings(
        max_frame_bytes=FRAME_BYTES, restart=RestartPolicy.never(), environment=GIVES_WAY if cuts else {}
    )
    return Route.start(specs, settings=settings)


# ---- the rows -----------------------------------------------------------------------------------


async def _workload(plan: CertifyPlan, route: Route) -> tuple[Sequence, ...]:
    """The texts, each with its own continuation, and one sequence of random tokens. All of them, and the rows
    that gather a batch, fit into the context at once."""
    (worker,) = route.workers
    n_vocab, recipe = worker.model.n_vocab, worker.identity.recipe
    # A quarter of the room is left to the filler.
    room = (recipe.n_ctx * 3 // 4) // (len(plan.prompts) + 1) if recipe.kv_unified else recipe.n_ctx
    longest = min(room - plan.n_steps, LARGEST_BLOCK_BYTES // (4 * n_vocab))
    if longest < LEAST_PROMPT_ROWS:
        raise GgufWorkerError(
            f"n_ctx {recipe.n_ctx} leaves {room} rows for each of {len(plan.prompts) + 1} sequences, and "
            f"{plan.n_steps} of them are decoded; use a larger n_ctx or fewer steps",
            code="argument",
        )
    sequences = []
    for number, text in enumerate(plan.prompts):
        prompt = await _tokens_of(route, text, number, n_vocab)
        prompt = prompt[:longest]
        continuation = await continue_greedily(route, prompt, plan.n_steps)
        sequences.append(Sequence(name=f"text {number}", prompt=prompt, continuation=continuation))
    drawn = random_tokens(min(plan.n_random, longest) + plan.n_steps, n_vocab)
    split = len(drawn) - plan.n_steps
    sequences.append(Sequence(name="random tokens", prompt=drawn[:split], continuation=drawn[split:]))
    return tuple(sequences)


async def _tokens_of(route: Route, text: str, number: int, n_vocab: int) -> tuple[int, ...]:
    """A model without a vocabulary gets as many random tokens as the text has words. Raises GgufWorkerError
    for a text without tokens."""
    if all(worker.vocabulary is None for worker in route.workers):
        return random_tokens(max(LEAST_PROMPT_ROWS, len(text.split())), n_vocab, seed=2 + number)
    tokens = tuple(await route.tokenize(text))
    if not tokens:
        raise GgufWorkerError(
            f"the prompt {text!r} has no tokens, and this model adds none of its own; give it some text",
            code="argument",
        )
    return tokens


async def _run(
    route: Route, workload: tuple[Sequence, ...], sink: Sink, label: str, report: OnProgress
) -> None:
    parts = 2 * len(workload) + 1
    for number, tokens in enumerate(workload):
        report(f"{label}: alone, {tokens.name}", 2 * number, parts)
        await run_alone(route, number, tokens, sink)
        report(f"{label}: row by row, {tokens.name}", 2 * number + 1, parts)
        await run_stepwise(route, number, tokens, sink)
    report(f"{label}: batched", parts - 1, parts)
    await run_batched(route, workload, sink)
    report(f"{label}: done", parts, parts)


async def _certify_cut(
    plan: CertifyPlan,
    cuts: tuple[int, ...],
    workload: tuple[Sequence, ...],
    unsplit: Recording,
    report: OnProgress,
) -> CutEvidence:
    found: dict[str, Comparison] = dict.fromkeys((ALONE, STEPWISE, BATCHED), Comparison())

    def check(key: Key, block: Buffer) -> None:
        found[key[0]] += compare(unsplit.get(key), block)

    label = "cut before " + ", ".join(map(str, cuts))
    async with _route(plan, cuts) as route:
        await _run(route, workload, check, label, report)
        shards = tuple(worker.identity.shard or "" for worker in route.workers)
    return CutEvidence(
        cuts=cuts, shards=shards, alone=found[ALONE], stepwise=found[STEPWISE], batched=found[BATCHED]
    )


# ---- invariance, of the unsplit model -----------------------------------------------------------


def _between(recording: Recording, one: str, other: str) -> Comparison:
    """Blocks computed in one way against the same ones computed in the other."""
    total = Comparison()
    for key in recording.keys:
        twin = (other, *key[1:])
        if key[0] == one and twin in recording:
            total += compare(recording.get(twin), recording.get(key))
    return total


def _stepwise_against_alone(recording: Recording) -> Comparison:
    total = Comparison()
    for key in recording.keys:
        if key[0] == STEPWISE:
            row = recording.get(key)
            _, number, position = key
            total += compare(recording.get((ALONE, number, 0), position * len(row), len(row)), row)
    return total


# ---- what is written down -----------------------------------------------------------------------


def _stable(build: dict[str, object]) -> dict[str, object]:
    """As JSON gives it back: tuples become lists."""
    devices = build["devices"]
    assert isinstance(devices, (list, tuple))
    return build | {"devices": list(devices)}


def _describe(workload: tuple[Sequence, ...]) -> dict[str, object]:
    return {
        "sequences": [
            {
                "name": tokens.name,
                "prompt_rows": len(tokens.prompt),
                "decoded_rows": len(tokens.continuation),
            }
            for tokens in workload
        ],
        "batched_sessions": len(workload),
    }
