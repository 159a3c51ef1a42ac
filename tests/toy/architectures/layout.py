"""Matrices that a file may hold as one or separately. The library takes both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from toy.architectures.discover import Tensor


def separate(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Gate and up of the experts as two matrices each, as most files have them."""
    return [part for tensor in tensors for part in _halves(tensor)]


def _halves(tensor: Tensor) -> Iterator[Tensor]:
    before, joined, after = tensor.name.partition("ffn_gate_up_exps")
    if not joined:
        yield tensor
        return
    experts, rows, columns = tensor.shape
    for part in ("ffn_gate_exps", "ffn_up_exps"):
        yield Tensor(before + part + after, (experts, rows // 2, columns))


def fuse(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Queries, keys and values as one matrix, and their biases as one vector."""
    rows: dict[str, int] = {}
    for tensor in tensors:
        if joined := _joined(tensor.name):
            rows[joined] = rows.get(joined, 0) + tensor.shape[0]
    fused: dict[str, Tensor] = {}
    for tensor in tensors:
        joined = _joined(tensor.name)
        fused.setdefault(joined or tensor.name, _renamed(tensor, joined, rows))
    return list(fused.values())


def _joined(name: str) -> str:
    """The name of the matrix or vector that this one is a part of, or nothing."""
    for part in ("attn_q", "attn_k", "attn_v"):
        if name.endswith((f".{part}.weight", f".{part}.bias")):
            return name.replace(part, "attn_qkv")
    return ""


def _renamed(tensor: Tensor, joined: str, rows: dict[str, int]) -> Tensor:
    if not joined:
        return tensor
    return replace(tensor, name=joined, shape=(rows[joined], *tensor.shape[1:]))
