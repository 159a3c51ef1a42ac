"""`gguf-worker doctor`: what is missing on this machine, and the command that mends it."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires
from importlib.metadata import version as installed_version
from pathlib import Path

import psutil

from gguf_worker.cli.errors import EXIT_FAILED
from gguf_worker.cli.text import one_line, print_json, printable, size
from gguf_worker.cli.version import ask_worker
from gguf_worker.errors import ExecutableNotFound, GgufWorkerError
from gguf_worker.process.executable import ENVIRONMENT_VARIABLE, find_executable
from gguf_worker.protocol.messages import Hello
from gguf_worker.supervision.settings import default_cache_dir

OLDEST_PYTHON = (3, 11)
LOW_DISK_BYTES = 1 << 30
LOW_MEMORY_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorConfig:
    cache_dir: Path | None
    """None: the default one."""
    json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    """The command or act that mends it; empty where all is well."""


async def examine(config: DoctorConfig) -> int:
    """Prints every check and returns the exit status: 0 when all is well."""
    checks = [check_python(sys.version_info[:3]), check_package(), check_executable()]
    checks += await check_worker()
    checks += [*check_storage(config.cache_dir), check_memory()]
    ok = all(check.ok for check in checks)
    if config.json:
        print_json({"ok": ok, "checks": [asdict(check) for check in checks]})
    else:
        print("\n".join(_lines(checks)))
    return 0 if ok else EXIT_FAILED


def check_python(found: tuple[int, int, int]) -> Check:
    """Python is new enough."""
    wanted = ".".join(map(str, OLDEST_PYTHON))
    ok = found[:2] >= OLDEST_PYTHON
    return Check(
        name="python",
        ok=ok,
        detail=".".join(map(str, found)),
        remedy="" if ok else f"install Python {wanted} or newer and make a new virtual environment with it",
    )


def check_package() -> Check:
    """The package that carries llama.cpp is installed."""
    try:
        return Check(name="llama-cpp-python", ok=True, detail=installed_version("llama-cpp-python"))
    except PackageNotFoundError:
        return Check(
            name="llama-cpp-python",
            ok=False,
            detail="not installed",
            remedy=_reinstall_library(),
        )


def check_executable() -> Check:
    """The worker's executable is there."""
    try:
        return Check(name="worker executable", ok=True, detail=str(find_executable()))
    except ExecutableNotFound as error:
        return Check(
            name="worker executable",
            ok=False,
            detail=one_line(error.message),
            remedy=_rebuild(),
        )


async def check_worker() -> list[Check]:
    """The worker runs, its library is the pinned one, and it sees devices."""
    try:
        hello = await ask_worker("llama")
    except GgufWorkerError as error:
        return [Check(name="worker", ok=False, detail=one_line(error.message), remedy=_remedy_of(error))]
    build = hello.build
    return [
        Check(name="worker", ok=True, detail=f"runs, version {hello.worker_version}"),
        Check(
            name="pin",
            ok=True,
            detail=f"llama.cpp {build.library_commit} is the pinned {build.pinned_commit}",
        ),
        Check(name="devices", ok=True, detail=", ".join(_devices(hello))),
        Check(name="features", ok=True, detail=one_line(build.features) or "none that llama.cpp names"),
    ]


def check_storage(folder: Path | None) -> list[Check]:
    """There is a cache folder, and room in it."""
    try:
        folder = folder or default_cache_dir()
    except GgufWorkerError as error:
        return [Check(name="cache folder", ok=False, detail=one_line(error.message), remedy=_choose_cache())]
    return [check_cache(folder), check_disk(folder)]


def check_cache(folder: Path) -> Check:
    """The cache folder can be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return Check(name="cache folder", ok=True, detail=f"{folder} is writable")
    except OSError as error:
        return Check(
            name="cache folder",
            ok=False,
            detail=f"{folder}: {error.strerror}",
            remedy=_choose_cache(),
        )


def check_disk(folder: Path) -> Check:
    """There is room for shard files."""
    try:
        existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
        free = shutil.disk_usage(existing).free
    except OSError as error:
        return Check(
            name="disk space", ok=False, detail=f"{folder}: {error.strerror}", remedy=_choose_cache()
        )
    ok = free >= LOW_DISK_BYTES
    remedy = "" if ok else "gguf-worker cache prune, or set GGUF_WORKER_CACHE to a larger disk"
    return Check(name="disk space", ok=ok, detail=f"{size(free)} free for the cache", remedy=remedy)


def check_memory() -> Check:
    """There is memory for a small model."""
    memory = psutil.virtual_memory()
    ok = memory.available >= LOW_MEMORY_BYTES
    return Check(
        name="memory",
        ok=ok,
        detail=f"{size(memory.available)} available of {size(memory.total)}, {os.cpu_count()} processors",
        remedy="" if ok else "stop other programs, or use a smaller model",
    )


def _remedy_of(error: GgufWorkerError) -> str:
    """The command that mends a worker that does not start: its library is not the one it was built for, or
    it is missing or broken itself."""
    return _reinstall_library() if error.code in ("pin", "identity") else _rebuild()


def _reinstall_library() -> str:
    """What installs the llama.cpp that this version is pinned to."""
    pinned = [word for word in _requirements() if word.startswith("llama-cpp-python")]
    return f"{sys.executable} -m pip install --force-reinstall --no-cache-dir {' '.join(pinned)}"


def _rebuild() -> str:
    """What puts a worker where the package looks for it."""
    if ENVIRONMENT_VARIABLE in os.environ:
        return f"unset {ENVIRONMENT_VARIABLE}"
    return f"in the project's folder: {sys.executable} -m pip install --force-reinstall --no-deps ."


def _choose_cache() -> str:
    """What makes a cache folder that can be used."""
    return "set GGUF_WORKER_CACHE to a folder that you may write to"


def _requirements() -> list[str]:
    try:
        return requires("gguf-worker") or []
    except PackageNotFoundError:
        return ["llama-cpp-python"]


def _devices(hello: Hello) -> Iterator[str]:
    for device in hello.build.devices:
        yield f"{device.name} ({device.description.strip()}, {size(device.memory_total)})"


def _lines(checks: list[Check]) -> Iterator[str]:
    width = max(len(check.name) for check in checks)
    for check in checks:
        yield f"{'ok     ' if check.ok else 'MISSING'}  {check.name:{width}}  {printable(check.detail)}"
        if check.remedy:
            yield f"         {'':{width}}  mend it: {printable(check.remedy)}"
