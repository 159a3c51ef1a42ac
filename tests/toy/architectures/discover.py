"""Asks llama.cpp which tensors a model has, from its hyper-parameters alone.

`llama_model_init_from_user` takes metadata without tensors and calls back for each tensor that the
architecture can have. The library aborts the process over metadata that it cannot take, so this is
called in a process of its own.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp as llama

from toy.library import ggml_base, log_errors_only


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor's name and shape, rows last, as numpy and the `gguf` package count them."""

    name: str
    shape: tuple[int, ...]


class _TensorHead(ctypes.Structure):
    """The first members of ggml.h's `ggml_tensor`."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
    )


class _ReadParameters(ctypes.Structure):
    """gguf.h's `gguf_init_params`."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


@functools.cache
def _gguf() -> ctypes.CDLL:
    library = ggml_base()
    library.gguf_init_from_file.restype = ctypes.c_void_p
    library.gguf_init_from_file.argtypes = [ctypes.c_char_p, _ReadParameters]
    library.gguf_free.argtypes = [ctypes.c_void_p]
    library.ggml_get_name.restype = ctypes.c_char_p
    library.ggml_get_name.argtypes = [ctypes.c_void_p]
    return library


def discover(metadata: Path) -> list[Tensor]:
    """The tensors of a model with the metadata of this GGUF file, each once, in the library's order.

    Raises OSError when the library refuses the metadata.
    """
    found: dict[str, Tensor] = {}

    def visit(address: int, _user_data: object) -> None:
        name = _gguf().ggml_get_name(address).decode()
        sizes = list(_TensorHead.from_address(address).ne)
        while len(sizes) > 1 and sizes[-1] == 1:
            sizes.pop()
        found.setdefault(name, Tensor(name, tuple(reversed(sizes))))

    log_errors_only()
    _load(metadata, visit)
    return list(found.values())


def _load(metadata: Path, visit: Any) -> None:
    callback = llama.llama_model_set_tensor_data_t(visit)
    keys = _gguf().gguf_init_from_file(str(metadata).encode(), _ReadParameters(True, None))
    if not keys:
        raise OSError(f"{metadata} is not a GGUF file")
    parameters = llama.llama_model_default_params()
    parameters.n_gpu_layers = 0
    parameters.load_mtp = True  # layers that predict further tokens, which the library else skips
    model = llama.llama_model_init_from_user(ctypes.c_void_p(keys), callback, None, parameters)
    _gguf().gguf_free(keys)
    if not model:
        raise OSError(f"llama.cpp refuses the metadata of {metadata}")
    llama.llama_model_free(model)
