"""Structs to dataclasses: a field of a dataclass is the struct's member of the same name."""

from dataclasses import fields
from typing import Any, TypeVar

from ._native import ffi, text

T = TypeVar("T")


def _plain(value: Any) -> Any:
    """A member as a Python value: `char[]` becomes str, numbers and bools stay what they are."""
    return text(value) if isinstance(value, ffi.CData) else value


def members(kind: type[T], raw: Any, **given: Any) -> T:
    """Builds a `kind` from the members of `raw`, except those that are `given`."""
    names = (field.name for field in fields(kind))  # type: ignore[arg-type]
    return kind(**{name: given[name] if name in given else _plain(getattr(raw, name)) for name in names})
