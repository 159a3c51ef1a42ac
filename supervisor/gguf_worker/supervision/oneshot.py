"""Requests that need a worker for one answer. Artifacts are parsed in a worker, never in this process."""

from __future__ import annotations

import os

from gguf_worker.protocol.messages import Inspect, Inspection, Slice, SliceResult
from gguf_worker.supervision.channel import ProgressCallback
from gguf_worker.supervision.life import Life, WorkerCommand
from gguf_worker.supervision.settings import WorkerSettings, default_cache_dir
from gguf_worker.supervision.watched import watched_request


async def inspect(
    model: str | os.PathLike[str],
    *,
    engine: str = "llama",
    settings: WorkerSettings | None = None,
    cache_dir: str | None = None,
    on_progress: ProgressCallback | None = None,
) -> Inspection:
    """What an artifact is: architecture, sizes, digests, where it may be cut. No weights are loaded.

    Raises StartupError, RequestError (not found, malformed, unreadable, ...) or WorkerDied.
    """
    settings = settings or WorkerSettings()
    request = Inspect(model=os.fspath(model), cache_dir=cache_dir or str(default_cache_dir()))
    async with Life(WorkerCommand(engine=engine), settings) as life:
        return await watched_request(
            life, request, Inspection, stall_s=settings.load_stall_timeout_s, on_progress=on_progress
        )


async def slice_artifact(
    model: str | os.PathLike[str],
    layers: tuple[int, int],
    output: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    engine: str = "llama",
    settings: WorkerSettings | None = None,
    cache_dir: str | None = None,
    on_progress: ProgressCallback | None = None,
) -> SliceResult:
    """Writes layers `[start, end)` as one self-contained GGUF, which appears whole or not at all.

    Raises StartupError, RequestError (range, no space, output exists, ...) or WorkerDied.
    """
    settings = settings or WorkerSettings()
    request = Slice(
        model=os.fspath(model),
        layers=layers,
        output=os.fspath(output),
        overwrite=overwrite,
        cache_dir=cache_dir or str(default_cache_dir()),
    )
    async with Life(WorkerCommand(engine=engine), settings) as life:
        return await watched_request(
            life, request, SliceResult, stall_s=settings.load_stall_timeout_s, on_progress=on_progress
        )
