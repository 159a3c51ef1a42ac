"""Whether the worker was built for the llama-cpp-python that is installed here."""

from __future__ import annotations

from importlib import metadata

from gguf_worker.errors import PinMismatch
from gguf_worker.protocol.messages import Build

LIBRARY = "llama-cpp-python"


def installed_library_version() -> str | None:
    """The version of llama-cpp-python in this environment; None where there is none."""
    try:
        return metadata.version(LIBRARY)
    except metadata.PackageNotFoundError:
        return None


def check_pin(build: Build, installed: str | None) -> None:
    """Raises PinMismatch where the worker's pin and the installed version are both known and differ."""
    if not build.pinned_package or installed is None or build.pinned_package == installed:
        return
    raise PinMismatch(
        f"the worker was built for {LIBRARY} {build.pinned_package}, but {installed} is installed; "
        f"run 'pip install {LIBRARY}=={build.pinned_package}' or rebuild gguf-worker",
        fields={"field": LIBRARY, "expected": build.pinned_package, "actual": installed},
    )
