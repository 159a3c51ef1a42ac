"""Artifacts without an engine: inspecting and slicing."""

import os
from typing import Any

from ._convert import members
from ._errors import check, new_error
from ._native import ffi, find_api
from ._params import path_bytes
from ._progress import ProgressBridge
from ._types import ArtifactFile, ArtifactInfo, ProgressCallback


def _read(api: Any, artifact: Any) -> ArtifactInfo:
    info, file = ffi.new("shard_artifact_info *"), ffi.new("shard_artifact_file *")
    api.artifact_info(artifact, info)
    files: list[ArtifactFile] = []
    while api.artifact_file(artifact, len(files), file):
        files.append(members(ArtifactFile, file))
    layer_bytes = tuple(api.artifact_layer_bytes(artifact, layer) for layer in range(info.n_layer))
    return members(ArtifactInfo, info, files=tuple(files), layer_bytes=layer_bytes)


def inspect(
    model: str | os.PathLike[str],
    *,
    engine: str = "llama",
    cache_dir: str | os.PathLike[str] | None = None,
    on_progress: ProgressCallback | None = None,
) -> ArtifactInfo:
    """Parses an artifact and hashes its files; no weights are loaded.

    Raises ShardEngineError: NOT_FOUND, IO, MALFORMED, CANCELLED, ARGUMENT.
    """
    api, error, progress = find_api(engine), new_error(), ProgressBridge(on_progress)
    model_path, cache = path_bytes(model), path_bytes(cache_dir)
    out = ffi.new("shard_artifact **")
    status = api.artifact_open(model_path, cache, progress.pointer, ffi.NULL, out, error)
    progress.reraise()
    check(status, error)
    try:
        return _read(api, out[0])
    finally:
        api.artifact_close(out[0])


def slice_artifact(
    model: str | os.PathLike[str],
    layers: tuple[int, int],
    output: str | os.PathLike[str],
    *,
    engine: str = "llama",
    overwrite: bool = False,
    cache_dir: str | os.PathLike[str] | None = None,
    on_progress: ProgressCallback | None = None,
) -> int:
    """Writes layers `[start, end)` as one self-contained file, whole or not at all. Returns its bytes.

    Raises ShardEngineError: as `inspect`, and RANGE, UNSUPPORTED, NO_SPACE.
    """
    api, error, progress = find_api(engine), new_error(), ProgressBridge(on_progress)
    model_path, cache, output_path = path_bytes(model), path_bytes(cache_dir), path_bytes(output)
    n_bytes = ffi.new("uint64_t *")
    status = api.slice(
        model_path,
        cache,
        layers[0],
        layers[1],
        output_path,
        overwrite,
        progress.pointer,
        ffi.NULL,
        n_bytes,
        error,
    )
    progress.reraise()
    check(status, error)
    return int(n_bytes[0])
