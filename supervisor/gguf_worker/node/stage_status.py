"""A stage of a mesh for people's pages: the fields that a worker has in /v1/status, as far as its node tells
them."""

from __future__ import annotations

from gguf_worker.node.tracker.groups import StagePlan
from gguf_worker.node.tracker.tracker import View
from gguf_worker_v1 import common_pb2

LOST = "lost"
"""State of a stage whose node's lease has run out."""


def stage_status(plan: StagePlan, view: View) -> dict[str, object]:
    """What its node says of it now, or said last."""
    registration = view.registrations.get(plan.node)
    stage = plan.stage if registration is None else _newest(plan, list(registration.stages))
    start, end = plan.layers
    return {
        "layers": f"{start}:{end}",
        "node": plan.node,
        "via": [endpoint.kind for endpoint in plan.endpoints],
        "state": LOST if registration is None else "draining" if registration.draining else stage.state,
        "restarts": stage.restarts,
        "ownership": {
            "layers": [stage.ownership.start, stage.ownership.end],
            "token_embedding": stage.ownership.token_embedding,
            "output_head": stage.ownership.output_head,
        },
        **stage_room(stage),
        "execution": stage_load(stage),
    }


def stage_room(stage: common_pb2.Stage) -> dict[str, object]:
    """What it occupies, and how much it can take."""
    return {
        "memory": {
            "weights_bytes": stage.memory.weights_bytes,
            "kv_bytes": stage.memory.kv_bytes,
            "compute_bytes": stage.memory.compute_bytes,
        },
        "capacity": {"max_sessions": stage.capacity.max_sessions, "kv_cells": stage.capacity.kv_cells},
    }


def stage_load(stage: common_pb2.Stage) -> dict[str, object]:
    """What is taken of it."""
    return {
        "sessions": stage.load.sessions,
        "kv_cells_used": stage.load.kv_cells_used,
        "queued": stage.load.queued,
    }


def _newest(plan: StagePlan, stages: list[common_pb2.Stage]) -> common_pb2.Stage:
    return next((stage for stage in stages if stage.identity == plan.stage.identity), plan.stage)
