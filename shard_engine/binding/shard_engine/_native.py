"""Finds the header and the shared library, and loads one with the declarations of the other."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cffi

ABI_VERSION = 3

_LIBRARY_NAME = "libshard_engine.dylib" if sys.platform == "darwin" else "libshard_engine.so"
_HEADER_NAME = "shard_engine.h"
_LIBRARY_VARIABLE = "GGUF_WORKER_SHARD_ENGINE_LIB"
_HEADER_VARIABLE = "GGUF_WORKER_SHARD_ENGINE_HEADER"

# Every struct that crosses the seam. cffi lays them out by itself, so their sizes are compared.
_STRUCTS = (
    "shard_error_field",
    "shard_error",
    "shard_recipe",
    "shard_params",
    "shard_device",
    "shard_build",
    "shard_description",
    "shard_artifact_file",
    "shard_artifact_info",
    "shard_memory",
    "shard_logit_bias",
    "shard_sampling",
    "shard_candidate",
    "shard_step_entry",
    "shard_token_info",
    "shard_vocabulary",
    "shard_engine_api",
)


def _package_folders() -> list[Path]:
    """The folders of this package: an editable install has two, the sources' and the installed one."""
    package = sys.modules[__package__]
    return [Path(folder) for folder in package.__path__]


def _source_headers() -> Iterator[Path]:
    """The header's place in a source tree, where the package is `binding/shard_engine`."""
    for folder in _package_folders():
        yield folder.parent.parent / "include" / _HEADER_NAME


def _first_file(candidates: list[Path], variable: str) -> Path:
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    tried = ", ".join(map(str, candidates))
    raise ImportError(f"no {candidates[0].name} (tried {tried}); install gguf-worker, or set {variable}")


def _find_library() -> Path:
    override = os.environ.get(_LIBRARY_VARIABLE)
    if override:
        return _first_file([Path(override)], _LIBRARY_VARIABLE)
    return _first_file([folder / _LIBRARY_NAME for folder in _package_folders()], _LIBRARY_VARIABLE)


def _find_header() -> Path:
    override = os.environ.get(_HEADER_VARIABLE)
    if override:
        return _first_file([Path(override)], _HEADER_VARIABLE)
    installed = [folder / _HEADER_NAME for folder in _package_folders()]
    sources = list(_source_headers())
    # A library that was named is one that was just built from the sources, so their header fits it; the
    # installed library was installed together with its header.
    named = bool(os.environ.get(_LIBRARY_VARIABLE))
    return _first_file(sources + installed if named else installed + sources, _HEADER_VARIABLE)


def _declarations(header: str) -> str:
    """What cffi reads of the header: no blocks that exclude it, no preprocessor lines."""
    without_blocks: list[str] = []
    depth = 0  # of nested conditionals inside an excluded block; 0 outside
    for line in header.splitlines():
        directive = re.match(r"\s*#\s*(\w+)", line)
        word = directive.group(1) if directive else ""
        if depth == 0 and re.match(r"\s*#\s*ifndef\s+SHARD_ENGINE_CDEF\b", line):
            depth = 1
        elif depth > 0:
            depth += {"if": 1, "ifdef": 1, "ifndef": 1, "endif": -1}.get(word, 0)
        elif not directive:
            without_blocks.append(line)
    return "\n".join(without_blocks)


def _check(ffi: Any, lib: Any, header: Path, library: Path) -> None:
    remedy = f"{header} and {library} are not of one build; rebuild or reinstall gguf-worker"
    if lib.SHARD_ENGINE_ABI_VERSION != ABI_VERSION:
        raise ImportError(
            f"{header} has ABI version {lib.SHARD_ENGINE_ABI_VERSION}, this binding speaks {ABI_VERSION}; "
            "reinstall gguf-worker"
        )
    for name in _STRUCTS:
        ours, theirs = ffi.sizeof(name), lib.shard_struct_size(name.encode())
        if ours != theirs:
            raise ImportError(f"{name} has {ours} bytes in the header and {theirs} in the library; {remedy}")


def _load() -> tuple[Any, Any]:
    library, header = _find_library(), _find_header()
    ffi: Any = cffi.FFI()
    ffi.cdef(_declarations(header.read_text(encoding="utf-8")))
    try:
        lib = ffi.dlopen(str(library))
    except OSError as error:
        raise ImportError(f"{library} cannot be loaded: {error}; reinstall gguf-worker") from error
    _check(ffi, lib, header, library)
    return ffi, lib


ffi, lib = _load()


def text(value: Any) -> str:
    """A NUL-terminated `char *` or `char[]` as str."""
    raw = ffi.string(value)
    assert isinstance(raw, bytes)
    return raw.decode("utf-8", "replace")


def find_api(engine: str) -> Any:
    """The function table of an engine. Raises ValueError where this build has none of that name."""
    api = lib.shard_engine_find(engine.encode())
    if api == ffi.NULL:
        raise ValueError(f"no engine {engine!r} in this build; it has {', '.join(engine_names())}")
    if api.abi_version != ABI_VERSION:
        raise ImportError(
            f"the {engine} engine has ABI version {api.abi_version}, this binding speaks {ABI_VERSION}; "
            "reinstall gguf-worker"
        )
    return api


def engine_names() -> tuple[str, ...]:
    """The names of all engines in this build."""
    names: list[str] = []
    while (name := lib.shard_engine_name(len(names))) != ffi.NULL:
        names.append(text(name))
    return tuple(names)
