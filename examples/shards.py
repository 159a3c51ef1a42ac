"""One model as many supervised shards, with an event log of all of them as JSON lines on stderr.

    python examples/shards.py MODEL.gguf --cuts 10,20

It generates, kills one of its workers, waits until the route is whole again, and generates the same text:
every stage came back with the identity that it had.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from dataclasses import asdict
from itertools import pairwise

import anyio

from gguf_worker import (
    EventReader,
    EventsDropped,
    LoadProgress,
    RestartPolicy,
    Route,
    ShardSpec,
    WorkerSettings,
)
from gguf_worker.errors import GgufWorkerError


async def main(options: argparse.Namespace) -> int:
    """A route's life; gives the exit status."""
    bounds = [0, *map(int, options.cuts.split(",")), 0]  # end 0 is the model's last layer
    specs = [ShardSpec(options.model, layers=layers, engine=options.engine) for layers in pairwise(bounds)]
    route = Route.start(specs, settings=WorkerSettings(restart=RestartPolicy(backoff_initial_s=0.1)))
    status = 0
    try:
        async with anyio.create_task_group() as tasks:
            for stage, supervisor in enumerate(route.supervisors):
                tasks.start_soon(log, stage, supervisor.events())  # ends when that one was left
            async with route:
                await rehearse(route, options)
    except* GgufWorkerError as failed:
        for error in failed.exceptions:
            print(f"error: {error}", file=sys.stderr)
        status = 1
    return status


async def rehearse(route: Route, options: argparse.Namespace) -> None:
    """The death of one worker between two generations."""
    before = await generate(route, options)
    print(before)
    victim = route.workers[len(route.workers) // 2]
    os.kill(victim.pid, signal.SIGKILL)
    await victim.wait_for_end()
    await route.wait_ready()
    after = await generate(route, options)
    print("the same again" if after == before else f"something else: {after}")
    for supervisor in route.supervisors:
        found = await supervisor.metrics()
        print(f"{found.identity}: {found.state}, {found.restarts} restarts, {dict(found.causes)}")


async def generate(route: Route, options: argparse.Namespace) -> str:
    """Text through all stages."""
    prompt = await route.tokenize(options.prompt)
    steps = [step.text_bytes async for step in route.generate(prompt, max_tokens=options.max_tokens)]
    return b"".join(steps).decode("utf-8", "replace")


async def log(stage: int, events: EventReader) -> None:
    """Writes the events of one stage; ends when its supervisor was left."""
    async for event in events:
        if not isinstance(event, LoadProgress):
            print(json.dumps(entry(stage, event), default=str), file=sys.stderr)


def entry(stage: int, event: object) -> dict[str, object]:
    """An event as a line of the log."""
    if isinstance(event, EventsDropped):
        return {"stage": stage, "event": "EventsDropped", "count": event.count}
    fields: dict[str, object] = asdict(event)  # type: ignore[call-overload]
    stamp = fields.pop("stamp")
    assert isinstance(stamp, dict)
    return {"stage": stage, "event": type(event).__name__, **stamp, **fields}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "model", help="a GGUF file; with --engine fake a specification such as fake:layers=12"
    )
    parser.add_argument("--cuts", default="10,20", help="where to cut, such as 10,20")
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--engine", default="llama")
    sys.exit(anyio.run(main, parser.parse_args()))
