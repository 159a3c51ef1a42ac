"""How a worker is run and how long each wait may take."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from gguf_worker.errors import GgufWorkerError
from gguf_worker.process.stop import StopDeadlines
from gguf_worker.protocol.limits import DEFAULT_MAX_FRAME_BYTES
from gguf_worker.supervision.policy import RestartPolicy

MOST_NICE = 19
"""Of nice(1), and of the worker's `--compute-nice`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Settings of the supervision; none of them changes a result. Times are in seconds."""

    executable: str | os.PathLike[str] | None = None
    """The worker's executable; None finds the one that came with the package."""
    hello_timeout_s: float = 30.0
    """From the spawn to hello. Loading a GPU library takes seconds; loading a model comes later."""
    load_stall_timeout_s: float = 60.0
    """How long a load, slice or inspection may go on without any progress. There is no limit on a slow
    one."""
    compute_stall_timeout_s: float = 60.0
    """How long a worker that owes any other answer may go on without any progress: no graph node computed and
    nothing answered. It is then killed; found at most half as much later. There is no limit on a slow one
    but `request_timeout_s`, which costs the request and not the worker."""
    request_timeout_s: float = 120.0
    """For each request that the worker's execution thread answers, waiting in its queue included."""
    control_timeout_s: float = 10.0
    """For ping, health and cancel, which the control thread answers at once."""
    end_of_stream_grace_s: float = 2.0
    """How long a worker may live on after it closed its end of the pipe."""
    stop: StopDeadlines = field(default_factory=StopDeadlines)
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    """What a Supervisor does about a worker that died; `RestartPolicy.never()` leaves it at that."""
    compute_nice: int = 0
    """How far the threads that compute give way to others, as nice(1) has it: 0 (not at all) to 19. Where
    every processor computes, a host that has clients to answer wants 10, which is what `serve` has; on a
    machine that is busy with other things computing then comes after those."""
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    stderr_lines: int = 50
    """Last lines of stderr that are kept for reports."""
    environment: dict[str, str] = field(default_factory=dict)
    """Added to the environment that the worker inherits."""

    def __post_init__(self) -> None:
        if not 0 <= self.compute_nice <= MOST_NICE:
            raise ValueError(f"WorkerSettings.compute_nice is {self.compute_nice}; give 0 to {MOST_NICE}")


def default_cache_dir() -> Path:
    """$GGUF_WORKER_CACHE, else $XDG_CACHE_HOME/gguf-worker, else ~/.cache/gguf-worker.

    Raises GgufWorkerError where there is no home either.
    """
    if chosen := os.environ.get("GGUF_WORKER_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "gguf-worker"
    except RuntimeError as error:
        raise GgufWorkerError(
            "no place for the cache: this user has no home folder (set GGUF_WORKER_CACHE to a folder)",
            code="cache_folder",
        ) from error
