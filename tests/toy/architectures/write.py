"""Writes the toy model of a variant: its keys, a vocabulary, and seeded random tensors."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType, GGUFWriter, quant_shape_to_byte_shape
from numpy.typing import NDArray

from toy.architectures.broken import Broken
from toy.architectures.discover import Tensor, discover
from toy.architectures.layout import fuse, separate
from toy.architectures.variant import Value, Variant
from toy.quantise import quantise
from toy.vocabulary import add_spm

Floats = NDArray[np.float32]

_OF_OTHERS = ("*.scale", "*.input_scale", "cls.*", "dense_*")
"""What only files with NVFP4 matrices have, or only models that classify or embed texts."""


def build(variant: Variant, folder: Path) -> Path:
    """Writes the toy model of `variant` into `folder` and returns its path; an existing one is kept.

    The same variant is the same bytes everywhere. The library may abort the process over hyper-parameters
    that it cannot take. Raises OSError where it refuses them, ValueError where `without` names nothing.
    """
    path = folder / f"{variant.name}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _write(variant, path, _tensors(variant, folder))
    return path


def build_broken(broken: Broken, folder: Path) -> Path:
    """The same for a model that the library must not see."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{broken.name}.gguf"
    _write(broken.variant, path, _tensors(broken.base, folder))
    return path


def _tensors(variant: Variant, folder: Path) -> list[Tensor]:
    """What the file holds beside its keys."""
    if variant.is_shell:
        return [Tensor("token_embd.weight", (1, 1))]
    keys = folder / f"{variant.name}.keys.gguf"
    _write(variant, keys, [])
    tensors = discover(keys)
    keys.unlink()
    return _in_file(variant, tensors)


def _in_file(variant: Variant, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that the variant's file holds, of those that the library knows."""
    for pattern in variant.without:
        if not any(fnmatch(tensor.name, pattern) for tensor in tensors):
            raise ValueError(f"{variant.name} has no tensor {pattern} to leave out")
    left_out = (*variant.without, *_OF_OTHERS)
    kept = [tensor for tensor in tensors if not any(fnmatch(tensor.name, pattern) for pattern in left_out)]
    return fuse(kept) if variant.fused else separate(kept)


def _write(variant: Variant, path: Path, tensors: Sequence[Tensor]) -> None:
    writer = GGUFWriter(path, variant.architecture)
    writer.add_name("a toy")
    for key, value in variant.keys.items():
        _add_key(writer, key[1:] if key[0] == "." else f"{variant.architecture}.{key}", value)
    writer.add_vocab_size(add_spm(writer, variant.tokens))
    for tensor in tensors:
        _add_tensor(writer, tensor, variant.weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_key(writer: GGUFWriter, key: str, value: Value) -> None:
    if isinstance(value, str) or not isinstance(value, Sequence):
        writer.add_key_value(key, value, _type_of(value))
    else:
        writer.add_key_value(key, list(value), GGUFValueType.ARRAY, _type_of(value[0]))


def _type_of(value: Value) -> GGUFValueType:
    match value:
        case bool():
            return GGUFValueType.BOOL
        case int():
            return GGUFValueType.UINT32
        case float():
            return GGUFValueType.FLOAT32
    return GGUFValueType.STRING


def _add_tensor(writer: GGUFWriter, tensor: Tensor, kind: Type) -> None:
    values = _values(tensor)
    if kind == Type.F32 or not _can_be(tensor, kind):
        writer.add_tensor(tensor.name, values)
    else:
        writer.add_tensor(tensor.name, quantise(values, kind), raw_dtype=kind)


def _can_be(tensor: Tensor, kind: Type) -> bool:
    """Only matrices that are multiplied with rows are quantised in real files."""
    part = tensor.name.removeprefix("blk.").lstrip("0123456789.")
    if len(tensor.shape) < 2 or not part.startswith(("token_embd.", "output.", "attn_", "ffn_")):
        return False
    if "norm" in part or not part.endswith(".weight") or part == "ffn_gate_inp.weight":
        return False
    try:
        quant_shape_to_byte_shape(tensor.shape, kind)
    except ValueError:
        return False
    return True


def _values(tensor: Tensor) -> Floats:
    """Weights that keep activations near 1, let layers outweigh the embedding, and spread the logits.

    They depend on the tensor's name alone, so that one tensor less leaves the others as they are.
    """
    random = np.random.default_rng(zlib.crc32(tensor.name.encode()))
    return _draw(random, tensor.name, tensor.shape).astype(np.float32)


def _draw(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    if "norm" in name and name.endswith(".weight"):
        return random.uniform(0.8, 1.2, shape)
    if "ssm_a" in name:  # a state's decay, which is exp() of a negative number
        return -random.uniform(0.2, 2.0, shape)
    if name.endswith(".ssm_d") or name.startswith("rope_") or "scale" in name:
        return random.uniform(0.8, 1.6, shape)
    if name.endswith(".bias") or len(shape) == 1:
        return 0.1 * random.standard_normal(shape)
    if name in ("token_embd.weight", "output.weight"):
        return 0.3 * random.standard_normal(shape)
    return 1.4 / math.sqrt(shape[-1]) * random.standard_normal(shape)
