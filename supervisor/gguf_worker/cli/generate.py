"""`gguf-worker generate`: text over the nodes of a mesh."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from time import monotonic

from gguf_worker import Generation, Sampling, Step
from gguf_worker._memory import keep_large_blocks
from gguf_worker.cli.node import paths_to_nodes, tracker_over
from gguf_worker.cli.node_options import PeerOptions
from gguf_worker.cli.run import candidates, prompt_tokens, stream
from gguf_worker.cli.text import one_line, print_json, print_table
from gguf_worker.generation.record import GenerationRecord, StageRecord
from gguf_worker.node.mesh import Mesh
from gguf_worker.node.nats import NatsOptions, connect_nats
from gguf_worker.node.paths import NATS
from gguf_worker.node.tracker.formation import RoutePlan, Wanted
from gguf_worker.telemetry import begin_generation, exporting, observe
from gguf_worker.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateConfig:
    nats: NatsOptions
    peers: PeerOptions
    model: str | None
    """None is any."""
    prompt: str
    max_tokens: int
    sampling: Sampling
    deadline_s: float | None
    account: str
    timings: bool
    json: bool

    def work(self) -> Work:
        """This request, which begins now."""
        deadline = None if self.deadline_s is None else monotonic() + self.deadline_s
        return Work(account=self.account, deadline=deadline)


async def generate(config: GenerateConfig) -> None:
    """Forms a route, streams the text, and says what became of it at every stage, also where it was
    cancelled."""
    keep_large_blocks()
    async with _mesh(config) as mesh:
        plan = await mesh.plan(Wanted(model=config.model))
        stages = stages_of(plan, mesh)
        if not config.json:
            print("\n".join([route_line(plan), *map(stage_line, stages)]), file=sys.stderr)
        async with mesh.route(plan) as route:
            prompt = await prompt_tokens(
                route,
                config.prompt,
                n_ctx=min(stage.stage.capacity.n_ctx for stage in plan.stages),
                max_tokens=config.max_tokens,
                remedy="shorten it, or serve with",
            )
            span = begin_generation(config.work(), model=plan.model)
            generation = route.generate(
                prompt, max_tokens=config.max_tokens, sampling=config.sampling, work=span.work
            )
            try:
                async with generation:
                    text, steps = await stream(generation, silent=config.json)
            finally:
                observe(generation.record, span)
                if not config.json:
                    if generation.finish_reason is None:  # the text broke off in the middle of a line
                        print(flush=True)
                    print(ending(generation.record), file=sys.stderr)
        if config.json:
            print_json(to_json(plan, stages, generation, text, steps))
        elif config.timings:
            show_stages(generation.record)


@asynccontextmanager
async def _mesh(config: GenerateConfig) -> AsyncIterator[Mesh]:
    async with AsyncExitStack() as stack:
        stack.enter_context(exporting())
        nats = await stack.enter_async_context(connect_nats(config.nats))
        tracker = await stack.enter_async_context(tracker_over(nats))
        yield Mesh(tracker, await stack.enter_async_context(paths_to_nodes(config.peers, nats)))


# ---- what is shown ------------------------------------------------------------------------------


def route_line(plan: RoutePlan) -> str:
    """The route as a whole."""
    name = one_line(plan.model)
    return (
        f"route of {name} {plan.artifact[:12]}, build {plan.build_class}, certificate {plan.certificate[:12]}"
    )


def stages_of(plan: RoutePlan, mesh: Mesh) -> list[dict[str, object]]:
    """Each stage, and how its node is reached."""
    return [
        {
            "node": stage.node,
            "layers": "{}:{}".format(*stage.layers),
            "endpoint": mesh.paths.taken[stage.node].kind,
            "address": mesh.paths.taken[stage.node].address,
        }
        for stage in plan.stages
    ]


def stage_line(stage: Mapping[str, object]) -> str:
    """A stage for people."""
    how = "relayed as" if stage["endpoint"] == NATS else "directly at"
    return f"  layers {stage['layers']} on {stage['node']}, {how} {one_line(str(stage['address']))}"


def ending(record: GenerationRecord) -> str:
    """How the work ended, with what every stage acknowledged."""
    freed = [
        f"{stage.label}: {'not told' if stage.kv_cells_freed is None else stage.kv_cells_freed}"
        for stage in record.stages
    ]
    first = record.time_to_first_token_us
    times = "" if first is None else f", the first after {first / 1000:.1f} ms"
    replays = f", {record.replays} stages brought back" if record.replays else ""
    return (
        f"{record.finish_reason or 'ended'} after {record.tokens} tokens{times}{replays}; "
        f"work {record.work_id}\nKV cells freed: {', '.join(freed) or 'none, no session was open'}"
    )


def show_stages(record: GenerationRecord) -> None:
    """A table of what each stage did, on stderr."""
    columns = (
        *(
            "stage",
            "forwards",
            "rows",
            "queue ms",
            "compute ms",
            "hop ms",
            "mean batch",
            "KiB to",
            "KiB from",
        ),
        "replays",
    )
    print_table(columns, [_row(stage) for stage in record.stages])


def _row(stage: StageRecord) -> tuple[str, ...]:
    return (
        stage.label,
        str(stage.forwards),
        str(stage.rows),
        *(f"{us / 1000:.1f}" for us in (stage.queue_us, stage.compute_us, stage.hop_us)),
        f"{stage.batch_rows / stage.forwards:.1f}" if stage.forwards else "-",
        f"{stage.bytes_out / 1024:.1f}",
        f"{stage.bytes_in / 1024:.1f}",
        str(stage.replays),
    )


def to_json(
    plan: RoutePlan,
    stages: Sequence[Mapping[str, object]],
    generation: Generation,
    text: str,
    steps: Sequence[Step],
) -> dict[str, object]:
    """Everything as one object."""
    asked = generation.sampling.top_logprobs > 0
    return {
        "text": text,
        "tokens": generation.tokens,
        "finish_reason": generation.finish_reason,
        **({"logprobs": [candidates(step) for step in steps]} if asked else {}),
        "route": {
            "model": plan.model,
            "artifact": plan.artifact,
            "build_class": plan.build_class,
            "certificate": plan.certificate,
            "stages": list(stages),
        },
        "record": generation.record.to_map(),
    }
