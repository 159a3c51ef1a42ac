"""Runs llama.cpp shards out of process, supervised: one GGUF layer range per worker.

async with Supervisor(ShardSpec("model.gguf", layers=(0, 16))) as worker: ...
async with Route.start([ShardSpec(...), ShardSpec(...)]) as route: ...

Names are imported where they are first used (PEP 562), so that the command line answers at once.
"""

TYPE_CHECKING = False  # typing's own costs an import, which Ctrl-C can hit

if TYPE_CHECKING:
    from gguf_worker import errors
    from gguf_worker.errors import GgufWorkerError
    from gguf_worker.generation import (
        FinishReason,
        Generation,
        GenerationRecord,
        ReplaySettings,
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
        Candidate,
        Fork,
        Health,
        Inspection,
        Memory,
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
        estimate,
        inspect,
        slice_artifact,
    )
    from gguf_worker.supervision.events import (
        EventReader,
        EventsDropped,
        GaveUp,
        LoadProgress,
        RestartScheduled,
        StateChanged,
        StderrLine,
        SupervisorEvent,
        WorkerEnded,
        WorkerReady,
        WorkerReleased,
    )
    from gguf_worker.supervision.metrics import Metrics
    from gguf_worker.supervision.policy import RestartPolicy
    from gguf_worker.work import Work

    __version__: str

_NAMES = {
    "errors": ("GgufWorkerError",),
    "generation": (
        "FinishReason",
        "Generation",
        "GenerationRecord",
        "ReplaySettings",
        "Route",
        "SessionChain",
        "Step",
        "Timings",
        "Utf8Stream",
    ),
    "identity": ("Identity", "Recipe", "artifact_digest"),
    "process.exit": ("ExitCause", "ExitReport", "StopRung"),
    "process.release": ("ReleaseReport",),
    "process.stop": ("StopDeadlines",),
    "protocol.messages": (
        "Candidate",
        "Fork",
        "Health",
        "Inspection",
        "Memory",
        "Output",
        "Progress",
        "Result",
        "Sampling",
        "SliceResult",
    ),
    "supervision": (
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
    ),
    "supervision.events": (
        "EventReader",
        "EventsDropped",
        "GaveUp",
        "LoadProgress",
        "RestartScheduled",
        "StateChanged",
        "StderrLine",
        "SupervisorEvent",
        "WorkerEnded",
        "WorkerReady",
        "WorkerReleased",
    ),
    "supervision.metrics": ("Metrics",),
    "supervision.policy": ("RestartPolicy",),
    "work": ("Work",),
}
"""The public names by the module that has them: the same as above, for those who are no type checker."""

_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "Candidate",
    "EventReader",
    "EventsDropped",
    "ExitCause",
    "ExitReport",
    "FinishReason",
    "Fork",
    "GaveUp",
    "Generation",
    "GenerationRecord",
    "GgufWorkerError",
    "Health",
    "Identity",
    "Inspection",
    "LoadProgress",
    "Memory",
    "Metrics",
    "Output",
    "Progress",
    "Recipe",
    "ReleaseReport",
    "ReplaySettings",
    "RestartPolicy",
    "RestartScheduled",
    "Result",
    "Route",
    "Sampling",
    "Session",
    "SessionChain",
    "ShardSpec",
    "SliceResult",
    "StateChanged",
    "StderrLine",
    "Step",
    "StopDeadlines",
    "StopRung",
    "Supervisor",
    "SupervisorEvent",
    "Timings",
    "Utf8Stream",
    "Work",
    "Worker",
    "WorkerEnded",
    "WorkerReady",
    "WorkerReleased",
    "WorkerSettings",
    "WorkerState",
    "__version__",
    "artifact_digest",
    "default_cache_dir",
    "errors",
    "estimate",
    "inspect",
    "slice_artifact",
]

if not TYPE_CHECKING:  # a checker that saw it would let any name pass

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name == "__version__":
            value = _version()
        elif name == "errors":
            value = import_module("gguf_worker.errors")
        elif name in _MODULE_OF:
            value = getattr(import_module(f"gguf_worker.{_MODULE_OF[name]}"), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("gguf-worker")
    except metadata.PackageNotFoundError:  # imported from a source tree that is not installed
        return "0+unknown"
