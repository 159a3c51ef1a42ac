"""`gguf-worker nodes`: which nodes a tracker knows, what they serve, and how they are."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import anyio
from rich.console import Console
from rich.live import Live
from rich.text import Text

from gguf_worker.cli.text import one_line, plain_table, print_json, printable, size
from gguf_worker.node.nats import NatsOptions, connect_nats
from gguf_worker.node.stage_status import stage_load, stage_room
from gguf_worker.node.tracker.jetstream import JetStreamTracker
from gguf_worker.node.tracker.tracker import Tracker, View
from gguf_worker_v1 import common_pb2, registration_pb2

LOOK_S = 1.0
"""Between two looks where nothing changes: ages do."""

COLUMNS = ("node", "layers", "model", "state", "sessions", "KV cells", "weights", "reached at")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesConfig:
    nats: NatsOptions
    watch: bool
    json: bool


async def show_nodes(config: NodesConfig) -> None:
    """Prints the nodes once, or again whenever something changes."""
    async with connect_nats(config.nats) as nats, JetStreamTracker(nats) as tracker:
        view, ages = tracker.view(), tracker.ages()
        if config.watch:
            await _watch(tracker, config)
        elif config.json:
            print_json(to_json(view, ages))
        else:
            print(describe(view))


async def _watch(tracker: Tracker, config: NodesConfig) -> None:
    """Until it is stopped: on a terminal one table that is drawn anew, elsewhere one after the other."""
    if config.json:
        await _follow(tracker, lambda: print(json.dumps(_json_now(tracker)), flush=True))
    elif not sys.stdout.isatty():
        await _follow(tracker, lambda: print(f"{_text_now(tracker)}\n", flush=True))
    else:
        with Live(console=Console(), auto_refresh=False) as live:
            await _follow(tracker, lambda: live.update(Text(_text_now(tracker)), refresh=True), LOOK_S)


async def _follow(tracker: Tracker, show: Callable[[], None], look_s: float | None = None) -> None:
    """Shows every view, and the same one again after `look_s`."""
    view = tracker.view()
    while True:
        show()
        with anyio.move_on_after(look_s):
            await tracker.changed(view)
        view = tracker.view()


def _json_now(tracker: Tracker) -> dict[str, object]:
    return to_json(tracker.view(), tracker.ages())


def _text_now(tracker: Tracker) -> str:
    return describe(tracker.view(), tracker.ages())


# ---- what is shown ------------------------------------------------------------------------------


def describe(view: View, ages: Mapping[str, float] | None = None) -> str:
    """A table of the stages of nodes, and what was refused. Ages are for who has watched for a while:
    none is older than that."""
    rows = [
        (*row, f"{ages.get(node, 0.0):.1f} s ago") if ages is not None else row
        for node, one in view.registrations.items()
        for row in _rows(node, one)
    ]
    columns = COLUMNS if ages is None else (*COLUMNS, "heard")
    lines = [plain_table(columns, rows)] if rows else ["no node is registered"]
    lines += [f"refused: {printable(node)}: {one_line(reason)}" for node, reason in view.refused.items()]
    return "\n".join(lines)


def _rows(node: str, registration: registration_pb2.Registration) -> Iterator[tuple[str, ...]]:
    """One for each stage; one without a stage where there is none."""
    reached = ", ".join(map(endpoint, registration.endpoints)) or "-"
    if not registration.stages:
        yield (node, "-", "-", "no stage", "-", "-", "-", reached)
    for stage in registration.stages:
        load, capacity = stage.load, stage.capacity
        yield (
            node,
            f"{stage.identity.start}:{stage.identity.end}",
            f"{stage.model.name or stage.model.architecture} {stage.identity.artifact[:12]}",
            "draining" if registration.draining else stage.state,
            f"{load.sessions}/{capacity.max_sessions}",
            f"{load.kv_cells_used}/{capacity.kv_cells}",
            size(stage.memory.weights_bytes),
            reached,
        )


def endpoint(found: registration_pb2.Endpoint) -> str:
    """How a node is reached: `grpc 10.0.0.1:7000`."""
    return f"{found.kind}{' with TLS' if found.tls else ''} {found.address}"


def to_json(view: View, ages: Mapping[str, float]) -> dict[str, object]:
    """All that is known of them."""
    return {
        "nodes": [
            {
                "node": node,
                "instance": one.instance,
                "revision": one.revision,
                "version": f"{one.version.major}.{one.version.minor}",
                "software": one.software,
                "draining": one.draining,
                "lease_s": one.lease_ms / 1000,
                "heard_s": round(ages.get(node, 0.0), 3),
                "endpoints": [endpoint_to_json(found) for found in one.endpoints],
                "certificates": list(one.certificate_ids),
                "stages": [stage_to_json(stage) for stage in one.stages],
            }
            for node, one in view.registrations.items()
        ],
        "refused": [{"node": node, "reason": reason} for node, reason in view.refused.items()],
    }


def endpoint_to_json(found: registration_pb2.Endpoint) -> dict[str, object]:
    return {"kind": found.kind, "address": found.address, "tls": found.tls}


def stage_to_json(stage: common_pb2.Stage) -> dict[str, object]:
    """What a stage attested, and its load."""
    identity, build = stage.identity, stage.build
    return {
        "layers": [identity.start, identity.end],
        "artifact": identity.artifact,
        "shard": identity.shard,
        "recipe": dict(sorted(identity.recipe.items())),
        "model": {
            "name": stage.model.name,
            "architecture": stage.model.architecture,
            "n_layer": stage.model.n_layer,
        },
        "build": {
            "engine": build.engine,
            "engine_version": build.engine_version,
            "library_commit": build.library_commit,
            "features": build.features,
            "build_class": build.build_class,
            "devices": [f"{device.kind} {device.name}" for device in build.devices],
        },
        "owns": {
            "layers": stage.ownership.owned_layers,
            "tensors": stage.ownership.tensors,
            "bytes": stage.ownership.bytes,
            "token_embedding": stage.ownership.token_embedding,
            "output_head": stage.ownership.output_head,
        },
        **stage_room(stage),
        "load": stage_load(stage),
        "state": stage.state,
        "restarts": stage.restarts,
    }
