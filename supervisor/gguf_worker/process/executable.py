"""Where the worker's executable is."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

import gguf_worker
from gguf_worker.errors import ExecutableNotFound

ENVIRONMENT_VARIABLE = "GGUF_WORKER_EXECUTABLE"
EXECUTABLE_NAME = "gguf-shard-worker"


def find_executable(configured: str | os.PathLike[str] | None = None) -> Path:
    """The configured path, else $GGUF_WORKER_EXECUTABLE, else the one that was installed with the package.

    Raises ExecutableNotFound, which says where it looked and what to do.
    """
    if configured is not None:
        return _checked(Path(configured), "WorkerSettings.executable")
    if named := os.environ.get(ENVIRONMENT_VARIABLE):
        return _checked(Path(named), f"${ENVIRONMENT_VARIABLE}")
    candidates = _installed_places()
    for candidate in candidates:
        if _is_executable(candidate):
            return candidate
    raise ExecutableNotFound(
        f"no {EXECUTABLE_NAME} in this installation; run 'pip install .' in the project "
        f"or set ${ENVIRONMENT_VARIABLE} to a built one",
        fields={"searched": os.pathsep.join(map(str, candidates))},
    )


def _installed_places() -> list[Path]:
    """Beside the Python files; in an editable install, whose Python files stay in the source tree, where the
    installer's record says."""
    places = [Path(folder) / "_bin" / EXECUTABLE_NAME for folder in gguf_worker.__path__]
    try:
        recorded = metadata.files("gguf-worker") or ()
    except metadata.PackageNotFoundError:
        return places
    return places + [Path(str(file.locate())) for file in recorded if file.name == EXECUTABLE_NAME]


def _checked(path: Path, origin: str) -> Path:
    if _is_executable(path):
        return path
    raise ExecutableNotFound(
        f"{origin} names {str(path)!r}, which is not an executable file; correct or unset it",
        fields={"path": str(path)},
    )


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
