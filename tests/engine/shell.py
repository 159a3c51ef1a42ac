"""Files with a model's hyper-parameters and hardly a tensor: enough to judge and cut, too little to load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFWriter

from toy.vocabulary import add_spm

N_EMBD, N_VOCAB = 64, 315

Value = bool | int | float | Sequence[int] | Sequence[bool]

Keys = Mapping[str, Value]

PLAIN: Keys = {
    "context_length": 512,
    "embedding_length": N_EMBD,
    "block_count": 12,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
}


def write_shell(
    folder: Path, architecture: str, keys: Keys | None = None, *, tied: bool = False, general: str = ""
) -> Path:
    """A model of `architecture`; `keys` are its own, without its name, and `general` is one of another name.

    The values of a layer's tensor are the number of the layer, those of the head 2.
    """
    merged = {**PLAIN, **(keys or {})}
    path = folder / f"{architecture}.gguf"
    writer = GGUFWriter(path, architecture)
    add_spm(writer)
    for key, value in merged.items():
        _add(writer, f"{architecture}.{key}", value)
    if general:
        writer.add_string(general, "of layers")
    writer.add_tensor("token_embd.weight", np.ones((N_VOCAB, N_EMBD), dtype="f4"))
    writer.add_tensor("output_norm.weight", np.ones(N_EMBD, dtype="f4"))
    if not tied:
        writer.add_tensor("output.weight", np.full((N_VOCAB, N_EMBD), 2, dtype="f4"))
    n_layer = merged["block_count"]
    assert isinstance(n_layer, int)
    for layer in range(n_layer):
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", np.full(N_EMBD, layer, dtype="f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: GGUFWriter, key: str, value: Value) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_array(key, list(value))


def keys_of(path: Path) -> dict[str, object]:
    """The architecture's own keys of a GGUF file, without its name."""
    reader = GGUFReader(path)
    architecture = reader.fields["general.architecture"].contents()
    prefix = f"{architecture}."
    return {
        name.removeprefix(prefix): field.contents()
        for name, field in reader.fields.items()
        if name.startswith(prefix)
    }
