"""The fake engine's arithmetic once more, in Python, from the formulas in `fake/fake_engine.h`."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

MODULUS = 65521
A, B, C, EMBEDDING, HEAD = 1, 2, 3, 4, 5


def _mix(value: int, word: int) -> int:
    value = ((value ^ word) * 0x9E3779B1) & 0xFFFFFFFF
    return value ^ (value >> 15)


@dataclass(slots=True)
class ReferenceSession:
    """The memory of every layer after the last row."""

    memory: list[list[int]]


@dataclass(frozen=True)
class FakeReference:
    """An unsplit fake model."""

    n_layer: int = 12
    n_embd: int = 8
    n_vocab: int = 64
    seed: int = 1
    _tensors: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    @cached_property
    def specification(self) -> str:
        """The canonical text, whose sha256 names the artifact."""
        return f"fake:layers={self.n_layer},embd={self.n_embd},vocab={self.n_vocab},seed={self.seed}"

    def _tensor(self, kind: int, layer: int) -> list[int]:
        if (kind, layer) not in self._tensors:
            count = self.n_embd * (self.n_vocab if kind in (EMBEDDING, HEAD) else 1)
            origin = _mix(_mix(_mix(0, self.seed), kind), layer)
            self._tensors[kind, layer] = [_mix(origin, i) % MODULUS for i in range(count)]
        return self._tensors[kind, layer]

    def open(self) -> ReferenceSession:
        return ReferenceSession([[0] * self.n_embd for _ in range(self.n_layer)])

    def hidden(self, session: ReferenceSession, token: int, n_layers: int | None = None) -> list[int]:
        """The row of one more token after the first `n_layers` layers, by default all."""
        start = token * self.n_embd
        row = self._tensor(EMBEDDING, self.n_layer)[start : start + self.n_embd]
        for layer in range(self.n_layer if n_layers is None else n_layers):
            row = self._apply(layer, session.memory[layer], row)
        return row

    def _apply(self, layer: int, memory: list[int], row: list[int]) -> list[int]:
        a, b, c = (self._tensor(kind, layer) for kind in (A, B, C))
        memory[:] = [(3 * m + x + 1) % MODULUS for m, x in zip(memory, row, strict=True)]
        neighbours = row[1:] + row[:1]
        return [
            (a[i] * row[i] + neighbours[i] + b[i] * memory[i] + c[i]) % MODULUS for i in range(self.n_embd)
        ]

    def logits(self, row: Sequence[int]) -> list[float]:
        """One logit per token; the division is exact in float32."""
        head = self._tensor(HEAD, self.n_layer)
        return [
            (sum(head[v * self.n_embd + i] * x for i, x in enumerate(row)) % MODULUS) // 256 / 16
            for v in range(self.n_vocab)
        ]


def as_floats(values: Sequence[float]) -> bytes:
    """Native float32 values."""
    return struct.pack(f"={len(values)}f", *values)


def log_probability(logits: Sequence[float], token: int) -> float:
    """Natural logarithm of the probability of `token` over the whole vocabulary."""
    largest = max(logits)
    return logits[token] - largest - math.log(sum(math.exp(value - largest) for value in logits))
