"""Writes one toy model: metadata, vocabulary, then seeded random tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter
from numpy.typing import NDArray

from toy.catalogue import KINDS, Toy
from toy.quantise import quantise
from toy.vocabulary import add_bpe, add_spm

Floats = NDArray[np.float32]


def build(kind: str, folder: Path) -> Path:
    """Writes the toy model `kind` into `folder` and returns its (first) file; an existing one is kept.

    The same kind is the same bytes everywhere. Raises KeyError for a kind that is not in KINDS.
    """
    return build_toy(KINDS[kind], folder, kind)


def build_toy(toy: Toy, folder: Path, name: str) -> Path:
    """The same for a shape that is not in the catalogue."""
    first = folder / (f"{name}.gguf" if toy.files == 1 else f"{name}-00001-of-{toy.files:05d}.gguf")
    if not first.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_toy(toy, folder / f"{name}.gguf", name)
    return first


def write_toy(toy: Toy, path: Path, name: str, architecture: str = "llama") -> None:
    """Writes `toy` to `path` (or split files beside it) as a model that calls itself `architecture`."""
    per_file = 0 if toy.files == 1 else math.ceil(_count_tensors(toy) / toy.files)
    writer = GGUFWriter(path, architecture, split_max_tensors=per_file)
    writer.add_name(name)
    _add_hyperparameters(writer, toy)
    n_vocab = add_spm(writer, toy.further_tokens) if toy.vocabulary == "spm" else add_bpe(writer)
    writer.add_vocab_size(n_vocab)
    if toy.alignment != writer.data_alignment:
        writer.add_custom_alignment(toy.alignment)
    for tensor, values, kind in _tensors(toy, n_vocab):
        _add_tensor(writer, tensor, values, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _count_tensors(toy: Toy) -> int:
    return sum(1 for _ in _shapes(toy, 1))


def _add_hyperparameters(writer: GGUFWriter, toy: Toy) -> None:
    writer.add_context_length(2048)
    writer.add_embedding_length(toy.embd)
    writer.add_block_count(toy.layers)
    writer.add_head_count(toy.heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(toy.embd // toy.heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_head_count_kv([toy.kv_heads] * toy.layers if toy.arrays else toy.kv_heads)
    writer.add_feed_forward_length([toy.ff] * toy.layers if toy.arrays else toy.ff)
    if toy.pooling is not None:
        writer.add_pooling_type(toy.pooling)
    if toy.experts:
        writer.add_expert_count(toy.experts)
        writer.add_expert_used_count(toy.experts_used)


def _add_tensor(writer: GGUFWriter, name: str, values: Floats, kind: Type) -> None:
    if kind == Type.F32:
        writer.add_tensor(name, values)
    elif kind == Type.F16:
        writer.add_tensor(name, values.astype(np.float16))
    else:
        writer.add_tensor(name, quantise(values, kind), raw_dtype=kind)


def _tensors(toy: Toy, n_vocab: int) -> Iterator[tuple[str, Floats, Type]]:
    """All tensors in file order, with values drawn in that order from one seeded generator."""
    random = np.random.default_rng(toy.seed)
    for name, shape, kind in _shapes(toy, n_vocab):
        yield name, _values(random, name, shape), kind


def _values(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> Floats:
    """Weights that keep activations near 1, let layers outweigh the embedding, and spread the logits."""
    if "norm" in name:
        return random.uniform(0.8, 1.2, shape).astype(np.float32)
    if name.endswith(".bias"):
        return (0.1 * random.standard_normal(shape)).astype(np.float32)
    if name == "rope_freqs.weight":
        return random.uniform(1.0, 4.0, shape).astype(np.float32)
    scale = 0.3 if name in ("token_embd.weight", "output.weight") else 1.4 / math.sqrt(shape[-1])
    return (scale * random.standard_normal(shape)).astype(np.float32)


def _shapes(toy: Toy, n_vocab: int) -> Iterator[tuple[str, tuple[int, ...], Type]]:
    """Name, shape (rows last) and type of every tensor."""
    yield "token_embd.weight", (n_vocab, toy.embd), toy.head_type
    if toy.rope_factors:
        yield "rope_freqs.weight", (toy.embd // toy.heads // 2,), Type.F32
    for layer in range(toy.layers):
        for part, shape, kind in _layer_shapes(toy):
            yield f"blk.{layer}.{part}", shape, kind
    yield "output_norm.weight", (toy.embd,), Type.F32
    if not toy.tied:
        yield "output.weight", (n_vocab, toy.embd), toy.head_type


def _layer_shapes(toy: Toy) -> Iterator[tuple[str, tuple[int, ...], Type]]:
    kv = toy.kv_heads * toy.embd // toy.heads
    matrices = {"attn_q": (toy.embd, toy.embd), "attn_k": (kv, toy.embd), "attn_v": (kv, toy.embd)}
    matrices["attn_output"] = (toy.embd, toy.embd)
    if not toy.experts:
        matrices |= {
            "ffn_gate": (toy.ff, toy.embd),
            "ffn_up": (toy.ff, toy.embd),
            "ffn_down": (toy.embd, toy.ff),
        }
    yield "attn_norm.weight", (toy.embd,), Type.F32
    yield "ffn_norm.weight", (toy.embd,), Type.F32
    for name, shape in matrices.items():
        yield f"{name}.weight", shape, toy.weights
        if toy.biases:
            yield f"{name}.bias", shape[:1], Type.F32
    if toy.experts:
        yield "ffn_gate_inp.weight", (toy.experts, toy.embd), Type.F32
        yield "ffn_gate_exps.weight", (toy.experts, toy.ff, toy.embd), toy.weights
        yield "ffn_up_exps.weight", (toy.experts, toy.ff, toy.embd), toy.weights
        yield "ffn_down_exps.weight", (toy.experts, toy.embd, toy.ff), toy.weights
