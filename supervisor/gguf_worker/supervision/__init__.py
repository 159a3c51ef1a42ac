"""Supervision of one worker: settings, lifecycle, requests in flight, attested identity."""

from gguf_worker.supervision.lifecycle import WorkerState
from gguf_worker.supervision.oneshot import estimate, inspect, slice_artifact
from gguf_worker.supervision.session import Session
from gguf_worker.supervision.settings import WorkerSettings, default_cache_dir
from gguf_worker.supervision.spec import ShardSpec
from gguf_worker.supervision.supervisor import Supervisor
from gguf_worker.supervision.worker import Worker

__all__ = [
    "Session",
    "ShardSpec",
    "Supervisor",
    "Worker",
    "WorkerSettings",
    "WorkerState",
    "default_cache_dir",
    "estimate",
    "inspect",
    "slice_artifact",
]
