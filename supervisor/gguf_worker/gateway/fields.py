"""Takes the parameters of a request one by one, each with its type and range; what is left is not known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeVar, overload

from gguf_worker.gateway.errors import ApiError

T = TypeVar("T")


class Fields:
    """The members of a JSON object that were not taken yet. A member that is null counts as not given, as
    OpenAI's clients mean it. Everything raises ApiError, which names the parameter."""

    def __init__(self, members: Mapping[str, object], path: str = "") -> None:
        self._left = {name: value for name, value in members.items() if value is not None}
        self._path = path

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def name(self, name: str) -> str:
        """As an error calls it."""
        return f"{self._path}{name}"

    def take(self, name: str) -> object:
        """Whatever is there; None where nothing is."""
        return self._left.pop(name, None)

    def need(self, name: str) -> object:
        """As `take`, of what must be there."""
        if name not in self._left:
            raise ApiError(
                f"{self.name(name)} is missing", param=self.name(name), code="missing_required_parameter"
            )
        return self.take(name)

    def refuse(self, name: str, why: str, code: str = "invalid_value") -> ApiError:
        """The error of a parameter."""
        return ApiError(f"{self.name(name)} {why}", param=self.name(name), code=code)

    @overload
    def integer(self, name: str, low: int, high: int, default: int) -> int: ...
    @overload
    def integer(self, name: str, low: int, high: int, default: None = None) -> int | None: ...
    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int | None:
        """A whole number from `low` to `high`."""
        value = self.take(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refuse(name, "is not a whole number", "invalid_type")
        if not low <= value <= high:
            raise self.refuse(name, f"is {_shown(value)}; it must be from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float, default: float) -> float:
        """A number from `low` to `high`."""
        value = self.take(name)
        if value is None:
            return default
        return self.checked_number(name, value, low, high)

    def checked_number(self, name: str, value: object, low: float, high: float) -> float:
        """The same of a value that was taken."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(name, "is not a number", "invalid_type")
        if not (low <= value <= high and math.isfinite(value)):
            raise self.refuse(name, f"is {_shown(value)}; it must be from {low:g} to {high:g}")
        return float(value)

    def boolean(self, name: str, default: bool = False) -> bool:
        """true or false."""
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(name, "is neither true nor false", "invalid_type")
        return value

    @overload
    def text(self, name: str, default: str) -> str: ...
    @overload
    def text(self, name: str, default: None = None) -> str | None: ...
    def text(self, name: str, default: str | None = None) -> str | None:
        """A string."""
        value = self.take(name)
        if value is None:
            return default
        return self.checked_text(name, value)

    def checked_text(self, name: str, value: object) -> str:
        """A value that must be a string, of characters that UTF-8 has."""
        if not isinstance(value, str):
            raise self.refuse(name, "is not a string", "invalid_type")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self.refuse(name, "holds half of a surrogate pair, which is no character") from None
        return value

    def one_of(self, name: str, allowed: Iterable[str], default: str) -> str:
        """One of some words."""
        value = self.text(name, default)
        words = tuple(allowed)
        if value not in words:
            raise self.refuse(name, f"is {value!r}; it must be one of {', '.join(words)}")
        return value

    def list_of(self, name: str, most: int) -> list[object] | None:
        """An array of at most so many values."""
        value = self.take(name)
        return None if value is None else self.checked_list(name, value, most)

    def checked_list(self, name: str, value: object, most: int) -> list[object]:
        """The same of a value that was taken."""
        if not isinstance(value, list):
            raise self.refuse(name, "is not an array", "invalid_type")
        if len(value) > most:
            raise self.refuse(name, f"has {len(value)} values, more than {most}")
        return value

    def object_of(self, name: str) -> Fields | None:
        """An object, to be taken apart in turn."""
        value = self.take(name)
        return None if value is None else self.checked_object(name, value)

    def checked_object(self, name: str, value: object) -> Fields:
        """The same of a value that was taken."""
        if not isinstance(value, dict):
            raise self.refuse(name, "is not an object", "invalid_type")
        return Fields(value, f"{self.name(name)}.")

    def members(self) -> dict[str, object]:
        """All that is left, which is then taken."""
        left, self._left = self._left, {}
        return left

    def finish(self, *, ignored: Iterable[str] = (), refused: Mapping[str, str] | None = None) -> None:
        """Refuses what was not taken: by name what is known and would change the answer, and whatever is not
        known. `ignored` would change nothing."""
        for name in ignored:
            self._left.pop(name, None)
        for name in self._left:
            why = (refused or {}).get(name)
            if why is not None:
                raise self.refuse(name, f"is not supported: {why}", "unsupported_parameter")
            raise self.refuse(name, "is not a parameter that is known here", "unknown_parameter")


def _shown(value: float) -> str:
    return repr(value) if not isinstance(value, int) or value.bit_length() < 128 else "a huge number"
