"""What each range of a model's layers would occupy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Self

from gguf_worker.errors import PlanError
from gguf_worker.identity import Recipe
from gguf_worker.protocol.messages import Inspection, Memory

F32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Bytes of a model by layer, and the layers before which it may be cut.

    KV is taken to be the same for every layer. The scratch buffers of each stage are taken to be those of the
    whole model and the rows that a stage is given, which is the most that they can be.
    """

    sums: tuple[int, ...]
    """Bytes of the tensors of the first 0, 1, 2, ... layers."""
    embedding: int
    """Of the token embedding, which the first stage holds."""
    head: int
    """Of output norm and head, which the last stage holds."""
    is_tied: bool
    """Whether the head is the embedding, so that a stage which has both holds it once."""
    kv_per_layer: int
    compute: int
    """Of a stage's scratch buffers, at most."""
    bounds: tuple[int, ...]
    """The first layer of those that are divided, each one before which a cut is allowed, and their end."""
    reason: str = ""
    """Why it may not be cut, where it may not."""

    @classmethod
    def of(cls, found: Inspection, memory: Memory, recipe: Recipe) -> Self:
        """Of an artifact, and of what the whole of it would take with a recipe. Raises PlanError where the
        artifact is not whole."""
        if found.slice is not None:
            start, end = found.slice
            raise PlanError(f"this file holds layers {start}:{end} only; give the whole artifact")
        return cls(
            sums=(0, *accumulate(found.layer_bytes)),
            embedding=found.embedding_bytes,
            head=found.head_bytes,
            is_tied=found.tied_head,
            kv_per_layer=-(-memory.kv_bytes // found.n_layer),
            compute=memory.compute_bytes + F32_BYTES * found.n_embd * recipe.n_batch,
            bounds=(0, *found.allowed_cuts, found.n_layer),
            reason=found.reason,
        )

    @property
    def n_layer(self) -> int:
        return len(self.sums) - 1

    def within(self, layers: tuple[int, int]) -> Self:
        """The same model, of which only these layers are divided. Raises PlanError where it cannot be cut
        there."""
        start, end = layers
        if start not in self.bounds or end not in self.bounds:
            allowed = self.reason or f"it may be cut before {', '.join(map(str, self.bounds[1:-1]))}"
            raise PlanError(f"layers {start}:{end} are no part of this model; {allowed}")
        return replace(self, bounds=tuple(bound for bound in self.bounds if start <= bound <= end))

    @property
    def most_stages(self) -> int:
        """As many as there are pieces between the bounds."""
        return len(self.bounds) - 1

    def tensors_of(self, start: int, end: int) -> int:
        """Bytes of the tensors of layers `[start, end)`, with what the first and the last stage hold
        besides."""
        is_first, is_last = start == 0, end == self.n_layer
        shared = min(self.embedding, self.head) if self.is_tied and is_first and is_last else 0
        besides = is_first * self.embedding + is_last * self.head - shared
        return self.sums[end] - self.sums[start] + besides

    def kv_of(self, start: int, end: int) -> int:
        """Bytes of the KV cells of these layers."""
        return (end - start) * self.kv_per_layer

    def total_of(self, start: int, end: int) -> int:
        """All bytes of the stage that holds these layers; 0 where it holds none."""
        if start == end:
            return 0
        return self.tensors_of(start, end) + self.kv_of(start, end) + self.compute
