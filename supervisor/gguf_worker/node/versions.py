"""The version of `gguf_worker.v1` that this node speaks, and which others it understands."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import Final

from gguf_worker.errors import GgufWorkerError
from gguf_worker_v1 import common_pb2

MAJOR: Final = 1
MINOR: Final = 0


def _software() -> str:
    try:
        return f"gguf-worker {installed_version('gguf-worker')}"
    except PackageNotFoundError:
        return "gguf-worker"


SOFTWARE: Final = _software()
"""Name and version of this software, for people."""


class VersionRefused(GgufWorkerError):
    """Raised for a peer of another major version; `fields` hold both."""

    default_code = "version"


def version() -> common_pb2.Version:
    """Ours."""
    return common_pb2.Version(major=MAJOR, minor=MINOR)


def check(theirs: common_pb2.Version) -> None:
    """Raises VersionRefused for another major version. Of a newer minor one the rest is skipped."""
    if theirs.major != MAJOR:
        ours, other = f"{MAJOR}.{MINOR}", f"{theirs.major}.{theirs.minor}"
        raise VersionRefused(
            f"the peer speaks version {other} of gguf_worker.v1 and this side {ours}; "
            "update the one with the lower number",
            fields={"expected": ours, "actual": other},
        )
