"""Progress callbacks: Python functions that C code calls."""

from typing import Any

from ._native import ffi, text
from ._types import ProgressCallback


class ProgressBridge:
    """Keeps a C callback alive around one call of the seam.

    An exception cannot travel through C. It cancels the call instead, and `reraise` raises it afterwards.
    """

    def __init__(self, on_progress: ProgressCallback | None) -> None:
        self._on_progress = on_progress
        self._exception: BaseException | None = None
        self.pointer: Any = ffi.NULL
        if on_progress is not None:
            self.pointer = ffi.callback("bool(const char *, uint64_t, uint64_t, void *)", self._call)

    def _call(self, phase: Any, done: int, total: int, _user_data: Any) -> bool:
        assert self._on_progress is not None
        try:
            return self._on_progress(text(phase), done, total) is not False
        except BaseException as exception:
            self._exception = exception
            return False

    def reraise(self) -> None:
        """Raises what the callback raised, if it did."""
        if self._exception is not None:
            raise self._exception
