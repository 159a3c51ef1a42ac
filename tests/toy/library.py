"""What the tests ask of the pinned library itself."""

from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path

import llama_cpp


@functools.cache
def ggml_base() -> ctypes.CDLL:
    """The library of gguf.h and ggml.h, which llama_cpp's Python package carries and llama.cpp uses."""
    folder = Path(llama_cpp.__file__).parent / "lib"
    found = sorted(folder.glob("libggml-base.so")) + sorted(folder.glob("libggml-base.dylib"))
    return ctypes.CDLL(str(found[0]))


def _log_errors(level: int, text: bytes, _user_data: object) -> None:
    if level == 4:  # GGML_LOG_LEVEL_ERROR
        sys.stderr.write(text.decode(errors="replace"))


_log_callback = llama_cpp.llama_log_callback(_log_errors)  # kept alive: the library holds a bare pointer


def log_errors_only() -> None:
    """Keeps the library from printing what it does."""
    llama_cpp.llama_log_set(_log_callback, None)
