"""The JSON of /v1/status. docs/operations.md says what each field is; fields are added, never changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import gguf_worker
from gguf_worker.identity import Identity
from gguf_worker.logs import utc
from gguf_worker.protocol.messages import Health
from gguf_worker.serving.journal import exit_fields
from gguf_worker.serving.service import Service
from gguf_worker.serving.shard import Look
from gguf_worker.supervision.events import WorkerEnded
from gguf_worker.supervision.metrics import Metrics


def service_status(service: Service, looks: Sequence[Look]) -> dict[str, object]:
    """The whole service."""
    return {
        "phase": service.phase.value,
        "version": gguf_worker.__version__,
        "pid": service.pid,
        "uptime_s": round(service.uptime_s, 3),
        "model": service.model,
        "workers": [_worker(look) for look in looks],
        **{name: part.status() for name, part in service.parts.items()},
    }


def _worker(look: Look) -> dict[str, object]:
    metrics = look.metrics
    return {
        "layers": look.layers,
        "state": metrics.state.value,
        "pid": metrics.pid,
        "generation": metrics.generation,
        "restarts": metrics.restarts,
        "causes": dict(metrics.causes),
        "ends": [_end(end) for end in look.ends],
        "failure": metrics.failure,
        "identity": None if metrics.identity is None else _identity(metrics.identity),
        "ownership": None if metrics.ownership is None else asdict(metrics.ownership),
        "memory": None if metrics.memory is None else asdict(metrics.memory),
        "capacity": None if metrics.capacity is None else asdict(metrics.capacity),
        "execution": None if metrics.health is None else _execution(metrics, metrics.health),
        "totals": asdict(metrics.totals),
        "load_s": metrics.load_s,
        "uptime_s": metrics.uptime_s,
        "stderr_lines": metrics.stderr_lines,
    }


def _end(end: WorkerEnded) -> dict[str, object]:
    return {
        "time": utc(end.stamp.time),
        "generation": end.stamp.generation,
        "pid": end.stamp.pid,
        **exit_fields(end.exit),
        "stderr_tail": list(end.exit.stderr_tail),
    }


def _identity(identity: Identity) -> dict[str, object]:
    return {
        "artifact": identity.artifact,
        "layers": [identity.start, identity.end],
        "shard": identity.shard,
        "recipe": asdict(identity.recipe),
    }


def _execution(metrics: Metrics, health: Health) -> dict[str, object]:
    """What the worker last said it does."""
    return {
        "is_fresh": metrics.health_is_fresh,
        "state": health.state,
        "phase": health.phase,
        "phase_done": health.phase_done,
        "phase_total": health.phase_total,
        "progress": health.progress,
        "sessions": health.sessions,
        "kv_cells_used": health.kv_cells_used,
        "queued": health.queued,
        "in_flight": metrics.in_flight,
        "rss_bytes": health.rss_bytes,
    }
