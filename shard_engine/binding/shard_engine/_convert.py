"""Structs and dataclasses: a field of a dataclass is the struct's member of the same name."""

from dataclasses import fields
from typing import Any, TypeVar

from ._native import ffi, text

T = TypeVar("T")


def _plain(value: Any) -> Any:
    """A member as a Python value: `char[]` becomes str, numbers and bools stay what they are."""
    return text(value) if isinstance(value, ffi.CData) else value


def _names(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)]


def members(kind: type[T], raw: Any, **given: Any) -> T:
    """Builds a `kind` from the members of `raw`, except those that are `given`."""
    names = _names(kind)
    return kind(**{name: given[name] if name in given else _plain(getattr(raw, name)) for name in names})


def fill(raw: Any, value: Any) -> None:
    """Sets the members of `raw` to those of a dataclass; str goes into a `char[]`."""
    for name in _names(value):
        member = getattr(value, name)
        setattr(raw, name, member.encode() if isinstance(member, str) else member)
