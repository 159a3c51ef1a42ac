"""Requests that need a worker for one answer. Artifacts are parsed in a worker, never in this process."""

from __future__ import annotations

import os

from gguf_worker.protocol.messages import Estimated, Inspect, Inspection, Memory, Slice, SliceResult
from gguf_worker.supervision.channel import ProgressCallback
from gguf_worker.supervision.life import Life, WorkerCommand
from gguf_worker.supervision.settings import WorkerSettings, default_cache_dir
from gguf_worker.supervision.spec import ShardSpec


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
        return await life.channel.request(request, Inspection, on_progress=on_progress)


async def estimate(
    spec: ShardSpec,
    *,
    settings: WorkerSettings | None = None,
    on_progress: ProgressCallback | None = None,
) -> Memory:
    """What a shard would take: bytes of weights, KV and compute buffers. Nothing of it is loaded; the shard's
    file is written to the cache where it is not there yet.

    Raises StartupError, RequestError (not found, malformed, range, unsupported, ...) or WorkerDied.
    """
    settings = settings or WorkerSettings()
    command = WorkerCommand(engine=spec.engine, fault_plan=spec.fault_plan)
    async with Life(command, settings) as life:
        estimated = await life.channel.request(spec.estimate_request(), Estimated, on_progress=on_progress)
    return estimated.memory


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
        return await life.channel.request(request, SliceResult, on_progress=on_progress)
