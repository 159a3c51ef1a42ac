"""Straight-line code that reads and writes the maps of one class, made once for each, as `dataclasses` makes
methods. No I/O.

A loop over keys and their readers costs many times as much, and what a request costs is decided by how much
code it runs through: the processor has forgotten most of it while the worker computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

MISSING: Final = object()
"""In place of a value that the map does not have."""

PLAIN: Final = frozenset({int, float, bool, bytes, str, type(None)})
"""Types that are written as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCode:
    """One key of a class."""

    name: str
    default: object
    """MISSING where it has none, or another one for each instance."""
    is_required: bool
    usual: str
    """A condition on `value`, as Python, under which `read` would give it back as it is."""
    members: Mapping[str, object]
    """What texts stand for, where they are names of an enumeration; it is usual that they are known."""
    read: Callable[[object], Any]
    """Checks and converts any other value, and MISSING; raises what is wrong with it."""


class Code(NamedTuple):
    """The code of one class."""

    read: Callable[[Mapping[str, object]], Any]
    """An instance of what a map holds under the keys of the class."""
    write: Callable[[Any, dict[str, object]], dict[str, object]]
    """Adds the keys of an instance to a map, and gives that back."""


def code_of(cls: type, keys: Sequence[KeyCode], write: Callable[[object], object]) -> Code:
    """Compiles the code of a frozen dataclass with slots. `write` is asked for values of other types than the
    plain ones."""
    source = "\n    ".join(["def read(values):", *_reading(cls, keys)])
    source += "\n" + "\n    ".join(["def write(self, written):", *_writing(keys)])
    names: dict[str, Any] = {
        "cls": cls,
        "draft": _draft_of(cls),
        "new": object.__new__,
        "MISSING": MISSING,
        "PLAIN": PLAIN,
        "write_value": write,
        **{f"read_{key.name}": key.read for key in keys},
        **{f"member_of_{key.name}": key.members.get for key in keys},
        **{f"default_{key.name}": key.default for key in keys},
    }
    exec(compile(source, f"<maps of {cls.__qualname__}>", "exec"), names)
    return Code(read=names["read"], write=names["write"])


def _draft_of(cls: type) -> type:
    """The class while it is not frozen: its instances become those of `cls` when they are whole."""
    thawed = {"__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    return type(cls.__name__, (cls,), {"__slots__": (), **thawed})


def _reading(cls: type, keys: Sequence[KeyCode]) -> Iterator[str]:
    yield "self = new(draft)"
    for key in keys:
        if key.default is MISSING:
            yield f"value = values[{key.name!r}] if {key.name!r} in values else MISSING"
            yield from _taking(key)
        else:
            yield f"if {key.name!r} in values:"
            yield f"    value = values[{key.name!r}]"
            yield from (f"    {line}" for line in _taking(key))
            yield f"else: self.{key.name} = default_{key.name}"
    yield "self.__class__ = cls"
    if hasattr(cls, "__post_init__"):
        yield "self.__post_init__()"
    yield "return self"


def _taking(key: KeyCode) -> Iterator[str]:
    read = f"read_{key.name}(value)"
    if key.members:
        read = f"type(value) is str and member_of_{key.name}(value) or {read}"
    yield f"if not ({key.usual}): value = {read}"
    yield f"self.{key.name} = value"


def _writing(keys: Sequence[KeyCode]) -> Iterator[str]:
    for key in keys:
        put = f"written[{key.name!r}] = value if type(value) in PLAIN else write_value(value)"
        yield f"value = self.{key.name}"
        yield put if key.is_required else f"if value is not None: {put}"
    yield "return written"
