"""The fake engine once more, in Python: its arithmetic from the formulas in `fake/fake_engine.h`, its draws
from `fake/fake_sampling.h`."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from shard_engine import Sampling

ARITHMETIC = {"f32": (65521, 256), "f16": (2039, 8), "bf16": (251, 1)}
"""By boundary: the modulus, and the residues that share a level of the logits."""
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
    boundary: str = "f32"
    _tensors: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    @cached_property
    def specification(self) -> str:
        """The canonical text, whose sha256 names the artifact."""
        return f"fake:layers={self.n_layer},embd={self.n_embd},vocab={self.n_vocab},seed={self.seed}"

    @property
    def modulus(self) -> int:
        return ARITHMETIC[self.boundary][0]

    def _tensor(self, kind: int, layer: int) -> list[int]:
        if (kind, layer) not in self._tensors:
            count = self.n_embd * (self.n_vocab if kind in (EMBEDDING, HEAD) else 1)
            origin = _mix(_mix(_mix(0, self.seed), kind), layer)
            self._tensors[kind, layer] = [_mix(origin, i) % self.modulus for i in range(count)]
        return self._tensors[kind, layer]

    def open(self) -> ReferenceSession:
        return ReferenceSession([[0] * self.n_embd for _ in range(self.n_layer)])

    def rows(self, session: ReferenceSession, token: int) -> list[list[int]]:
        """The row of one more token: its embedding, and what it is after each layer."""
        start = token * self.n_embd
        rows = [self._tensor(EMBEDDING, self.n_layer)[start : start + self.n_embd]]
        for layer in range(self.n_layer):
            rows.append(self._apply(layer, session.memory[layer], rows[-1]))
        return rows

    def hidden(self, session: ReferenceSession, token: int, n_layers: int | None = None) -> list[int]:
        """The row of one more token after the first `n_layers` layers, by default all."""
        return self.rows(session, token)[self.n_layer if n_layers is None else n_layers]

    def _apply(self, layer: int, memory: list[int], row: list[int]) -> list[int]:
        a, b, c = (self._tensor(kind, layer) for kind in (A, B, C))
        modulus = self.modulus
        memory[:] = [(3 * m + x + 1) % modulus for m, x in zip(memory, row, strict=True)]
        neighbours = row[1:] + row[:1]
        return [
            (a[i] * row[i] + neighbours[i] + b[i] * memory[i] + c[i]) % modulus for i in range(self.n_embd)
        ]

    def logits(self, row: Sequence[int]) -> list[float]:
        """One logit per token; the division is exact in float32."""
        head, (modulus, level) = self._tensor(HEAD, self.n_layer), ARITHMETIC[self.boundary]
        return [
            (sum(head[v * self.n_embd + i] * x for i, x in enumerate(row)) % modulus) // level / 16
            for v in range(self.n_vocab)
        ]


def as_floats(values: Sequence[float]) -> bytes:
    """Native float32 values."""
    return struct.pack(f"={len(values)}f", *values)


def as_rows(values: Sequence[float], dtype: str) -> bytes:
    """Native values of a boundary dtype, in which they are exact."""
    if dtype == "f16":
        return struct.pack(f"={len(values)}e", *values)
    if dtype == "bf16":  # the upper half of the float32
        halves = (bits >> 16 for bits in struct.unpack(f"={len(values)}I", as_floats(values)))
        return struct.pack(f"={len(values)}H", *halves)
    return as_floats(values)


def log_probability(logits: Sequence[float], token: int) -> float:
    """Natural logarithm of the probability of `token` over the whole vocabulary."""
    largest = max(logits)
    return logits[token] - largest - math.log(sum(math.exp(value - largest) for value in logits))


# ---- draws --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Choice:
    token: int
    logit: float
    weight: float = 0.0

    @property
    def order(self) -> tuple[float, int]:
        return -self.logit, self.token


def _f32(value: float) -> float:
    """The float32 that the seam carries, as a double."""
    (rounded,) = struct.unpack("=f", struct.pack("=f", value))
    assert isinstance(rounded, float)
    return rounded


def draw_seed(seed: int, position: int) -> int:
    """`shard_draw_seed`: the upper half of a SplitMix64 output; 0 for the one value that llama.cpp takes for
    "any"."""
    z = ((seed << 32 | position) + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    upper = (z ^ z >> 31) >> 32
    return 0 if upper == 2**32 - 1 else upper


def _weigh(choices: list[_Choice], temperature: float = 1.0) -> float:
    total = 0.0
    for choice in choices:
        choice.weight = math.exp((choice.logit - choices[0].logit) / temperature)
        total += choice.weight
    return total


def _penalised(sampling: Sampling, logit: float, times: int) -> float:
    repeat = _f32(sampling.repeat_penalty)
    logit = logit / repeat if logit > 0 else logit * repeat
    logit -= times * _f32(sampling.frequency_penalty)
    return logit - _f32(sampling.presence_penalty)


def _self_information(p: float) -> float:
    return -math.log(p) if p > 0 else math.inf


def _typical(choices: list[_Choice], typical_p: float) -> list[_Choice]:
    total = _weigh(choices)
    entropy = 0.0
    for choice in choices:
        p = choice.weight / total
        entropy += p * _self_information(p) if p > 0 else 0.0
    ordered = sorted(choices, key=lambda c: (abs(_self_information(c.weight / total) - entropy), *c.order))
    kept: list[_Choice] = []
    mass = 0.0
    while len(kept) < len(ordered) and mass <= typical_p:
        kept.append(ordered[len(kept)])
        mass += kept[-1].weight / total
    return sorted(kept, key=lambda c: c.order)


def _top_p(choices: list[_Choice], top_p: float) -> list[_Choice]:
    total, mass, kept = _weigh(choices), 0.0, 0
    while kept < len(choices) and mass < top_p:
        mass += choices[kept].weight / total
        kept += 1
    return choices[:kept]


def _min_p(choices: list[_Choice], min_p: float) -> list[_Choice]:
    _weigh(choices)
    return [choice for choice in choices if choice.weight >= min_p]


def _adjusted(sampling: Sampling, logits: Sequence[float], tokens: Sequence[int]) -> list[_Choice]:
    """Every token that may be drawn, after bias and penalties, the best first."""
    choices = [_Choice(token, logit) for token, logit in enumerate(logits)]
    for token, bias in sampling.logit_bias:
        choices[token].logit += _f32(bias)
    last_n = len(tokens) if sampling.repeat_last_n < 0 else sampling.repeat_last_n
    for token, times in Counter(tokens[max(0, len(tokens) - last_n) :]).items():
        choices[token].logit = _penalised(sampling, choices[token].logit, times)
    return sorted((c for c in choices if c.logit != -math.inf), key=lambda c: c.order)


def _filtered(sampling: Sampling, choices: list[_Choice]) -> list[_Choice]:
    if sampling.top_k:
        choices = choices[: sampling.top_k]
    if sampling.typical_p < 1:
        choices = _typical(choices, _f32(sampling.typical_p))
    if sampling.top_p < 1:
        choices = _top_p(choices, _f32(sampling.top_p))
    return _min_p(choices, _f32(sampling.min_p)) if sampling.min_p else choices


def draw(sampling: Sampling, logits: Sequence[float], tokens: Sequence[int]) -> int:
    """The token that a session draws whose rows have these tokens, from the logits of its last one."""
    choices = _adjusted(sampling, logits, tokens)
    if sampling.temperature == 0:
        return choices[0].token
    choices = _filtered(sampling, choices)
    total, mass = _weigh(choices, _f32(sampling.temperature)), 0.0
    limit = total * ((draw_seed(sampling.seed, len(tokens)) + 0.5) / 2**32)
    for choice in choices:
        mass += choice.weight
        if mass > limit:
            return choice.token
    return choices[-1].token
