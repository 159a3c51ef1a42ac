"""What an engine is opened with, as `shard_params`."""

import os
from typing import Any, TypedDict

from ._convert import fill
from ._native import ffi
from ._progress import ProgressBridge
from ._types import ProgressCallback, Recipe


class OpenOptions(TypedDict, total=False):
    """How to open a shard; what is not given has the engine's default."""

    layers: tuple[int, int]
    """`(start, end)`, where end 0 means up to the model's last layer."""
    recipe: Recipe
    artifact: str | None
    """The sha256 that the artifact must have."""
    max_sessions: int
    mmap: bool
    mlock: bool
    numa: str | None
    """None, "disabled", "distribute", "isolate" or "numactl"."""
    memory_available: int
    """Bytes that may be taken; what would not fit is refused. 0 is no check."""
    cache_dir: str | os.PathLike[str] | None
    fault_plan: str | None
    """For the fake engine."""
    on_progress: ProgressCallback | None


# Options whose member has another name.
_MEMBERS = {"artifact": "expected_artifact", "mmap": "use_mmap", "mlock": "use_mlock"}


def path_bytes(path: str | os.PathLike[str] | None) -> Any:
    """A path as a C string that lives as long as the value; NULL for None."""
    return ffi.NULL if path is None else ffi.new("char[]", os.fsencode(path))


class Params:
    """A `shard_params`, filled, and all that it points to."""

    def __init__(self, api: Any, model: str | os.PathLike[str], options: OpenOptions) -> None:
        rest: dict[str, Any] = dict(options)
        self.progress = ProgressBridge(rest.pop("on_progress", None))
        self.pointer = raw = ffi.new("shard_params *")
        self._alive: list[Any] = []
        api.default_params(raw)
        raw.on_progress = self.progress.pointer
        raw.layer_start, raw.layer_end = rest.pop("layers", (0, 0))
        fill(raw.recipe, rest.pop("recipe", Recipe()))
        self._set("model_path", model)
        for name, value in rest.items():
            if name not in OpenOptions.__annotations__:
                known = ", ".join(OpenOptions.__annotations__)
                raise TypeError(f"{name!r} is no option of an engine; there are {known}")
            self._set(_MEMBERS.get(name, name), value)

    def _set(self, member: str, value: Any) -> None:
        if value is None or isinstance(value, str | os.PathLike):
            value = path_bytes(value)
            self._alive.append(value)
        setattr(self.pointer, member, value)
