"""The engines of the shared library and what they are made of."""

from ._convert import members
from ._errors import check, new_error
from ._native import engine_names, ffi, find_api
from ._types import Build, Device


def engines() -> tuple[str, ...]:
    """The names of all engines in this build."""
    return engine_names()


def build(engine: str = "llama") -> Build:
    """Names an engine's build.

    Raises ShardEngineError (IDENTITY) when the library that is loaded is not the pinned one.
    """
    raw, error = ffi.new("shard_build *"), new_error()
    check(find_api(engine).build(raw, error), error)
    devices = tuple(members(Device, raw.devices[i]) for i in range(raw.n_devices))
    return members(Build, raw, devices=devices)
