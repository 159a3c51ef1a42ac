"""Dataclasses that read themselves from a wire map and write themselves to one.

A class that derives from `WireMap` declares its keys as annotated dataclass fields. A field without a default
is a required key; a field with one is optional. Unknown keys are skipped, as docs/protocol.md demands,
unless the class is closed.
"""

from __future__ import annotations

import dataclasses
import math
import struct
import types
import typing
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeAlias

from gguf_worker._schema_code import MISSING, PLAIN, Code, KeyCode, code_of

if TYPE_CHECKING:
    View: TypeAlias = memoryview[Any]
else:
    View = memoryview  # generic for type checkers only

Buffer: TypeAlias = bytes | bytearray | View
"""Contiguous memory, of bytes or of floats."""


class SchemaError(ValueError):
    """Raised when a map does not have the shape that its class declares."""


@dataclasses.dataclass(frozen=True, slots=True)
class Range:
    """The integers from `low` to `high`, both included."""

    low: int
    high: int


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """The float32 numbers from `low` to `high`, `low` itself only where it is not `above`. Never NaN."""

    low: float
    high: float
    above: bool = False

    def __contains__(self, number: float) -> bool:
        return (self.low < number if self.above else self.low <= number) and number <= self.high

    def __str__(self) -> str:
        return f"{'above' if self.above else 'from'} {self.low:.9g} to {self.high:.9g}"


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """Text of `low` to `high` bytes of UTF-8 without a NUL, as a C string can hold it."""

    low: int
    high: int


@dataclasses.dataclass(frozen=True, slots=True)
class RowBytes:
    """Rows: `bin` only, never `str`."""


FLOAT32_MAX: float = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]
"""The largest finite float32."""


Uint = Annotated[int, Range(0, 2**64 - 1)]
Uint32 = Annotated[int, Range(0, 2**32 - 1)]
Int32 = Annotated[int, Range(-(2**31), 2**31 - 1)]
Float32 = Annotated[float, Span(-FLOAT32_MAX, FLOAT32_MAX)]
"""A finite number, rounded to the nearest float32 where it is read."""
Number = Annotated[int, Range(1, 2**64 - 1)]
"""What requests and sessions are known by."""
Name = Annotated[str, Line(0, 63)]
PathText = Annotated[str, Line(1, 4095)]
Token = Annotated[int, Range(-(2**31), 2**31 - 1)]
Rows = Annotated[Buffer, RowBytes()]

Read: TypeAlias = Callable[[object], Any]


class WireMap:
    """Base of everything that travels as a map."""

    __slots__ = ()

    is_closed: ClassVar[bool] = False
    """Whether an unknown key is an error, because skipping it could change what the map means."""

    @classmethod
    def from_map(cls, values: Mapping[str, object]) -> Self:
        """Reads the declared keys of `values`; raises SchemaError where one is missing or wrong."""
        if cls.is_closed and (unknown := values.keys() - {key.name for key in _keys_of(cls)}):
            raise SchemaError(f"unknown key {min(unknown)!r}")
        instance: Self = _codes[cls].read(values)
        return instance

    def to_map(self) -> dict[str, object]:
        """The declared keys in order; an optional key that holds None is left out."""
        return self.write_into({})

    def write_into(self, written: dict[str, object]) -> dict[str, object]:
        """Adds the keys of `to_map` to a map, and gives that back."""
        return _codes[type(self)].write(self, written)

    def settle(self) -> None:
        """Holds a map that was made by hand to the rules of one that came off the wire, and rounds its
        numbers as that would. To be called by `__post_init__`; raises SchemaError."""
        for key in _keys_of(type(self)):
            object.__setattr__(self, key.name, key.read(getattr(self, key.name)))


_known: dict[type[WireMap], tuple[KeyCode, ...]] = {}


def _keys_of(cls: type[WireMap]) -> tuple[KeyCode, ...]:
    keys = _known.get(cls)
    if keys is None:
        hints = typing.get_type_hints(cls, include_extras=True)
        keys = _known[cls] = tuple(
            _key_of(field, hints[field.name]) for field in dataclasses.fields(typing.cast(Any, cls))
        )
    return keys


def _key_of(field: dataclasses.Field[Any], hint: Any) -> KeyCode:
    has_default = field.default is not dataclasses.MISSING
    has_factory = field.default_factory is not dataclasses.MISSING
    return KeyCode(
        name=field.name,
        default=field.default if has_default else MISSING,
        is_required=not has_default and not has_factory,
        usual=_usual_of(hint),
        members=_members_of(hint),
        read=_key_reader(field, _reader_of(hint)),
    )


def _members_of(hint: Any) -> Mapping[str, StrEnum]:
    is_enum = isinstance(hint, type) and issubclass(hint, StrEnum)
    return {member.value: member for member in hint} if is_enum else {}


def _key_reader(field: dataclasses.Field[Any], read: Read) -> Read:
    """Also of what is not there; its errors name the key."""

    def read_key(value: object) -> Any:
        if value is MISSING:
            if field.default_factory is dataclasses.MISSING:
                raise SchemaError(f"key {field.name!r} is missing")
            return field.default_factory()
        try:
            return read(value)
        except SchemaError as error:
            raise SchemaError(f"key {field.name!r}: {error}") from None

    return read_key


class _Codes(dict[type[WireMap], Code]):
    """Of the classes that were read or written so far."""

    def __missing__(self, cls: type[WireMap]) -> Code:
        code = self[cls] = code_of(cls, _keys_of(cls), _write)
        return code


_codes = _Codes()


def _write(value: object) -> object:
    if isinstance(value, StrEnum):
        return value._value_  # `value` is a property, and costs as much as all the rest
    if isinstance(value, tuple):
        return [item if type(item) in PLAIN else _write(item) for item in value]
    return value.to_map() if isinstance(value, WireMap) else value


# ---- what is usual: one condition per kind of annotation ----------------------------------------


_SMALL = 2**30 - 1
"""Up to here Python compares two numbers at once."""


def _usual_of(hint: Any) -> str:
    """A condition under which the hint's reader would give `value` back as it is. What is rare is left to the
    reader altogether."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        mark = arguments[1]
        if isinstance(mark, Range):
            low, high = max(mark.low, -_SMALL), min(mark.high, _SMALL)
            return f"type(value) is int and {low} <= value <= {high}"
        return "type(value) is bytes" if isinstance(mark, RowBytes) else "False"
    if origin in (types.UnionType, typing.Union):
        return f"value is None or {_usual_of(_not_none(arguments))}"
    return f"type(value) is {hint.__name__}" if hint in _PLAIN else "False"


def _not_none(parts: tuple[Any, ...]) -> Any:
    return next(part for part in parts if part is not types.NoneType)


# ---- readers: one per kind of annotation --------------------------------------------------------


def _reader_of(hint: Any) -> Read:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _annotated_reader(arguments[1])
    if origin in (types.UnionType, typing.Union):
        return _optional_reader(_reader_of(_not_none(arguments)))
    if origin is tuple:
        return _tuple_reader(arguments)
    if origin is dict:
        return _text_map
    if isinstance(hint, type) and issubclass(hint, WireMap):
        return _nested_reader(hint)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _enum_reader(hint)
    return _PLAIN[hint]


def _annotated_reader(mark: object) -> Read:
    if isinstance(mark, RowBytes):
        return _rows
    if isinstance(mark, Line):
        return _line_reader(mark)
    if isinstance(mark, Span):
        return _span_reader(mark)
    assert isinstance(mark, Range)
    low, high = mark.low, mark.high

    def read(value: object) -> int:
        if type(value) is not int:
            raise SchemaError(f"expected an integer, not {_kind(value)}")
        if not low <= value <= high:
            raise SchemaError(f"{value} is not between {low} and {high}")
        return value

    return read


def _span_reader(mark: Span) -> Read:
    def read(value: object) -> float:
        number = _as_float32(_float(value))
        if number not in mark:
            raise SchemaError(f"{value} is not a number {mark}")
        return number

    return read


def _as_float32(number: float) -> float:
    """The nearest float32, an infinity where it is too large for one."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
    return rounded


def _line_reader(mark: Line) -> Read:
    def read(value: object) -> str:
        text = as_text(value)
        count = len(text.encode("utf-8", "surrogateescape"))
        if not mark.low <= count <= mark.high or "\0" in text:
            raise SchemaError(f"expected {mark.low} to {mark.high} bytes of text without a NUL, not {count}")
        return text

    return read


def _optional_reader(read: Read) -> Read:
    return lambda value: None if value is None else read(value)


def _tuple_reader(arguments: tuple[Any, ...]) -> Read:
    return _list_reader(arguments[0]) if arguments[-1] is Ellipsis else _record_reader(arguments)


def _list_reader(hint: Any) -> Read:
    """Any number of one kind."""
    read = _reader_of(hint)
    return lambda value: tuple(read(item) for item in _array(value))


def _record_reader(hints: tuple[Any, ...]) -> Read:
    """A fixed number, each of its own kind."""
    reads = tuple(_reader_of(hint) for hint in hints)

    def read(value: object) -> tuple[Any, ...]:
        items = _array(value)
        if len(items) != len(reads):
            raise SchemaError(f"expected an array of {len(reads)}, not of {len(items)}")
        return tuple(read_item(item) for read_item, item in zip(reads, items, strict=True))

    return read


def _array(value: object) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise SchemaError(f"expected an array, not {_kind(value)}")
    return value


def _nested_reader(cls: type[WireMap]) -> Read:
    def read(value: object) -> WireMap:
        if not isinstance(value, dict):
            raise SchemaError(f"expected a map, not {_kind(value)}")
        return cls.from_map(value)

    return read


def _enum_reader(cls: type[StrEnum]) -> Read:
    members = _members_of(cls)

    def read(value: object) -> StrEnum:
        member = members.get(as_text(value))
        if member is None:
            raise SchemaError(f"{as_text(value)!r} is none of {', '.join(cls)}")
        return member

    return read


def as_text(value: object) -> str:
    """Text from `str` or `bin`; raises SchemaError for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    raise SchemaError(f"expected text, not {_kind(value)}")


def _bytes(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    raise SchemaError(f"expected bytes, not {_kind(value)}")


def _rows(value: object) -> Buffer:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return value
    raise SchemaError(f"expected rows (bin), not {_kind(value)}")


def _bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise SchemaError(f"expected a bool, not {_kind(value)}")


def _float(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise SchemaError(f"{value} is too large for a number") from None
    raise SchemaError(f"expected a number, not {_kind(value)}")


def _text_map(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise SchemaError(f"expected a map, not {_kind(value)}")
    return {as_text(key): as_text(item) for key, item in value.items()}


_PLAIN: dict[Any, Read] = {str: as_text, bytes: _bytes, bool: _bool, float: _float}


def _kind(value: object) -> str:
    return "nil" if value is None else type(value).__name__
