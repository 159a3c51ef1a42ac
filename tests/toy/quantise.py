"""Floats to the bytes of any ggml type, by the pinned library's own quantiser."""

from __future__ import annotations

import ctypes
import functools

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import quant_shape_to_byte_shape
from numpy.typing import NDArray

from toy.library import ggml_base


@functools.cache
def _library() -> ctypes.CDLL:
    library = ggml_base()
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_chunk.argtypes = [
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_void_p,
    ]
    return library


def quantise(values: NDArray[np.float32], kind: Type) -> NDArray[np.uint8]:
    """The bytes of `values` (rows in the last axis) as `kind`, shaped as gguf's writer wants them.

    All importances are 1, so types that insist on an importance matrix can be made too.
    """
    rows = np.ascontiguousarray(values, dtype=np.float32)
    shape = quant_shape_to_byte_shape(rows.shape, kind)
    n_per_row = rows.shape[-1]
    out = np.zeros(shape, dtype=np.uint8)
    importance = np.ones(n_per_row, dtype=np.float32)
    written = 0
    for matrix, target in zip(
        rows.reshape(-1, *rows.shape[-2:]), out.reshape(-1, *out.shape[-2:]), strict=True
    ):
        written += _library().ggml_quantize_chunk(
            int(kind),
            matrix.ctypes.data,
            target.ctypes.data,
            0,
            matrix.shape[0],
            n_per_row,
            importance.ctypes.data,
        )
    if written != out.nbytes:
        raise ValueError(f"{kind.name}: {written} bytes were written, {out.nbytes} expected")
    return out
