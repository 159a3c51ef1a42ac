"""The models: the demo model, and random llamas of another size, which are written once and kept.

A random model costs exactly what a trained one of its shape does. It has the demo model's vocabulary, and its
weights are the bits of a generator that is the same everywhere, so the same seed is the same file everywhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader, GGUFValueType, GGUFWriter, TokenType
from numpy.typing import NDArray

import smollm2
from kit.program import Options, sha256_of
from kit.rounds import show_progress

FOLDER = Path(__file__).parents[2] / "build" / "bench" / "models"
DEMO = "demo"
REVISION = 1
"""Goes up when the same shape gives other bytes, so that an older file is not taken for the new one."""
SPACE = "\u0120"
"""How the vocabulary writes one."""
BLOCK = 32
"""Weights that share a scale."""
QUIET = np.float16(1 / 16)
"""How much smaller the embedding of a token is that shall never be drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A file to measure with."""

    name: str
    path: Path
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of a random llama with a tied head."""

    name: str
    weights: Type
    """Q4_0 or Q8_0: every matrix, the embedding too."""
    n_embd: int
    n_layer: int
    n_ff: int
    n_head: int
    n_head_kv: int
    n_ctx: int = 8192
    seed: int = 1


def _shapes() -> dict[str, tuple[Shape, Shape]]:
    """By kind: the one that is measured, and the one of `--tiny`."""
    found = {}
    for weights in (Type.Q4_0, Type.Q8_0):
        large = Shape(
            name=f"llama 1B {weights.name}",
            weights=weights,
            n_embd=2048,
            n_layer=16,
            n_ff=8192,
            n_head=32,
            n_head_kv=8,
        )
        tiny = Shape(
            name=f"llama tiny {weights.name}",
            weights=weights,
            n_embd=256,
            n_layer=4,
            n_ff=1024,
            n_head=4,
            n_head_kv=1,
        )
        found[f"1b-{weights.name.lower()}"] = (large, tiny)
    return found


SHAPES = _shapes()


def models(options: Options, *kinds: str) -> list[Model]:
    """Of these kinds: `demo`, `1b-q4_0`, `1b-q8_0`; with `--tiny` the last two are tiny. Those that are not
    there yet are written, which takes some seconds. Raises KeyError for another kind."""
    return [_model(options, kind) for kind in kinds]


def settings_of(found: Sequence[Model]) -> dict[str, str]:
    """Names with SHA-256 hashes, for a report's settings."""
    return {model.name: model.sha256 for model in found}


def _model(options: Options, kind: str) -> Model:
    if kind != DEMO:
        return random_llama(SHAPES[kind][options.is_tiny], options.model, FOLDER)
    digest = sha256_of(options.model)
    name = "SmolLM2-135M Q4_1" if digest == smollm2.SHA256 else options.model.stem
    return Model(name=name, path=options.model, sha256=digest)


def random_llama(shape: Shape, vocabulary: Path, folder: Path) -> Model:
    """The model in `folder`, written if it is not there as it should be. `vocabulary` is a GGUF file whose
    tokens it takes."""
    path = folder / f"{shape.name.lower().replace(' ', '-')}.gguf"
    beside = path.with_suffix(".json")
    recipe = {**asdict(shape), "vocabulary": sha256_of(vocabulary), "revision": REVISION}
    try:
        kept = json.loads(beside.read_text())
        if kept == {"recipe": recipe, "sha256": sha256_of(path)}:
            return Model(name=shape.name, path=path, sha256=kept["sha256"])
    except (OSError, ValueError):
        pass
    folder.mkdir(parents=True, exist_ok=True)
    show_progress(f"writing {shape.name}, once")
    _write_atomically(shape, vocabulary, path)
    digest = sha256_of(path)
    beside.write_text(json.dumps({"recipe": recipe, "sha256": digest}, indent=2) + "\n")
    return Model(name=shape.name, path=path, sha256=digest)


def _write_atomically(shape: Shape, vocabulary: Path, path: Path) -> None:
    """Two benches that begin at once write the same bytes, each into a file of its own."""
    unfinished = path.with_suffix(f".{os.getpid()}.unfinished")
    try:
        write(shape, vocabulary, unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


# ---- writing ------------------------------------------------------------------------------------


def write(shape: Shape, vocabulary: Path, path: Path) -> None:
    """Writes it tensor by tensor, in memory of a few MiB."""
    reader = GGUFReader(vocabulary)
    writer = GGUFWriter(path, "llama")
    _add_hyperparameters(writer, shape)
    _copy_vocabulary(reader, writer)
    is_drawn = _drawn_tokens(reader)
    writer.add_vocab_size(len(is_drawn))
    tensors = list(_tensors(shape, len(is_drawn)))
    for name, rows, columns in tensors:
        _add_info(writer, shape, name, rows, columns)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random = np.random.PCG64(shape.seed)
    for name, rows, columns in tensors:
        values = _values(random, shape, name, rows, columns)
        if name == "token_embd.weight":
            _quieten(values.reshape(rows, -1, _block_bytes(shape.weights)), ~is_drawn)
        writer.write_tensor_data(values)
    writer.close()


def _add_hyperparameters(writer: GGUFWriter, shape: Shape) -> None:
    writer.add_name(shape.name)
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.n_embd // shape.n_head)
    writer.add_rope_freq_base(500000.0)
    writer.add_quantization_version(2)


def _copy_vocabulary(reader: GGUFReader, writer: GGUFWriter) -> None:
    for key, field in reader.fields.items():
        if key.startswith("tokenizer."):
            is_array = field.types[0] == GGUFValueType.ARRAY
            writer.add_key_value(key, field.contents(), field.types[0], field.types[-1] if is_array else None)


def _drawn_tokens(reader: GGUFReader) -> NDArray[np.bool_]:
    """Whether a token may be drawn. One that ends a text may not, so that none ends early; nor a part of a
    character, because a server tells nothing until a character is whole."""
    types = reader.fields["tokenizer.ggml.token_type"].contents()
    pieces = reader.fields["tokenizer.ggml.tokens"].contents()
    pairs = zip(types, pieces, strict=True)
    return np.array(
        [kind == TokenType.NORMAL and piece.replace(SPACE, "").isascii() for kind, piece in pairs]
    )


def _tensors(shape: Shape, n_vocab: int) -> Iterator[tuple[str, int, int]]:
    """Name, rows and columns of every tensor, in file order; a norm is one row."""
    kv = shape.n_head_kv * shape.n_embd // shape.n_head
    yield "token_embd.weight", n_vocab, shape.n_embd
    for layer in range(shape.n_layer):
        yield f"blk.{layer}.attn_norm.weight", 1, shape.n_embd
        yield f"blk.{layer}.attn_q.weight", shape.n_embd, shape.n_embd
        yield f"blk.{layer}.attn_k.weight", kv, shape.n_embd
        yield f"blk.{layer}.attn_v.weight", kv, shape.n_embd
        yield f"blk.{layer}.attn_output.weight", shape.n_embd, shape.n_embd
        yield f"blk.{layer}.ffn_norm.weight", 1, shape.n_embd
        yield f"blk.{layer}.ffn_gate.weight", shape.n_ff, shape.n_embd
        yield f"blk.{layer}.ffn_up.weight", shape.n_ff, shape.n_embd
        yield f"blk.{layer}.ffn_down.weight", shape.n_embd, shape.n_ff
    yield "output_norm.weight", 1, shape.n_embd


def _add_info(writer: GGUFWriter, shape: Shape, name: str, rows: int, columns: int) -> None:
    if _is_norm(name):
        writer.add_tensor_info(name, [columns], np.dtype(np.float32), 4 * columns)
        return
    row_bytes = columns // BLOCK * _block_bytes(shape.weights)
    # The writer takes the shape in bytes and makes that of the weights from it.
    writer.add_tensor_info(name, [rows, row_bytes], np.dtype(np.uint8), rows * row_bytes, shape.weights)


def _values(random: np.random.PCG64, shape: Shape, name: str, rows: int, columns: int) -> NDArray[Any]:
    """A norm is all ones. A matrix keeps the size of what goes through it, and the layers outweigh the
    embedding; else a tied head would give the token back that came in."""
    if _is_norm(name):
        return np.ones(columns, dtype=np.float32)
    deviation = 0.3 if name == "token_embd.weight" else 1.4 / np.sqrt(columns)
    return _blocks(random, shape.weights, rows * columns // BLOCK, deviation).reshape(rows, -1)


def _quieten(blocks: NDArray[np.uint8], rows: NDArray[np.bool_]) -> None:
    """Makes the scales of these rows smaller: their logits are then never the largest."""
    scales = np.ascontiguousarray(blocks[rows, :, :2]).view("<f2")
    blocks[rows, :, :2] = (scales * QUIET).astype("<f2").view(np.uint8)


def _is_norm(name: str) -> bool:
    return "norm" in name


def _block_bytes(weights: Type) -> int:
    """A half-precision scale, then the weights."""
    return 2 + (BLOCK // 2 if weights == Type.Q4_0 else BLOCK)


def _blocks(random: np.random.PCG64, weights: Type, n: int, deviation: float) -> NDArray[np.uint8]:
    """Blocks of weights that are equally likely anywhere in their type's range. The range reaches further
    down than up, so every other scale is negative, by chance: the mean is then 0."""
    size = _block_bytes(weights)
    levels = 16 if weights == Type.Q4_0 else 256
    scale = np.float16(deviation / np.sqrt((levels**2 - 1) / 12))
    # A generator's raw numbers never change with numpy's version; what is made of them may.
    words = random.random_raw((n * size + 7) // 8).astype("<u8")
    blocks = words.view(np.uint8)[: n * size].reshape(n, size)
    scales = np.where(blocks[:, 0] & 1, scale, -scale).astype("<f2")
    blocks[:, :2] = scales.view(np.uint8).reshape(n, 2)
    return blocks
