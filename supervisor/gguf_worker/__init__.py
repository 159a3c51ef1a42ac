"""Runs llama.cpp shards out of process, supervised: one GGUF layer range per worker.

async with Supervisor(ShardSpec("model.gguf", layers=(0, 16))) as worker: ...
async with Route.start([ShardSpec(...), ShardSpec(...)]) as route: ...
"""

from importlib import metadata as _metadata

from gguf_worker import errors
from gguf_worker.errors import GgufWorkerError
from gguf_worker.generation import (
    FinishReason,
    Generation,
    Route,
    SessionChain,
    Step,
    Timings,
    Utf8Stream,
)
from gguf_worker.identity import Identity, Recipe, artifact_digest
from gguf_worker.process.exit import ExitCause, ExitReport, StopRung
from gguf_worker.process.release import ReleaseReport
from gguf_worker.process.stop import StopDeadlines
from gguf_worker.protocol.messages import (
    Health,
    Inspection,
    Output,
    Progress,
    Result,
    Sampling,
    SliceResult,
)
from gguf_worker.supervision import (
    Session,
    ShardSpec,
    Supervisor,
    Worker,
    WorkerSettings,
    WorkerState,
    default_cache_dir,
    inspect,
    slice_artifact,
)

try:
    __version__ = _metadata.version("gguf-worker")
except _metadata.PackageNotFoundError:  # imported from a source tree that is not installed
    __version__ = "0+unknown"

__all__ = [
    "ExitCause",
    "ExitReport",
    "FinishReason",
    "Generation",
    "GgufWorkerError",
    "Health",
    "Identity",
    "Inspection",
    "Output",
    "Progress",
    "Recipe",
    "ReleaseReport",
    "Result",
    "Route",
    "Sampling",
    "Session",
    "SessionChain",
    "ShardSpec",
    "SliceResult",
    "Step",
    "StopDeadlines",
    "StopRung",
    "Supervisor",
    "Timings",
    "Utf8Stream",
    "Worker",
    "WorkerSettings",
    "WorkerState",
    "__version__",
    "artifact_digest",
    "default_cache_dir",
    "errors",
    "inspect",
    "slice_artifact",
]
