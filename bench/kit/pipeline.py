"""What limits stages that compute at the same time, and where their cut would limit them least. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What one stage computed."""

    layers: tuple[int, int]
    """`[start, end)`."""
    compute_s: float
    """Seconds, in steps that follow each other."""

    @property
    def n_layer(self) -> int:
        return self.layers[1] - self.layers[0]


def ideal(stages: Sequence[Stage]) -> float:
    """How many times as fast as one after the other, where the slowest stage never waits."""
    return _total(stages) / max(stage.compute_s for stage in stages)


def ideal_of(stages: Sequence[Stage], n_pieces: int) -> float:
    """The same for so many equal pieces that go through the stages once: at first, and at the end, some
    stages have nothing to do."""
    slowest = max(stage.compute_s for stage in stages)
    return _total(stages) / (_total(stages) / n_pieces + slowest * (n_pieces - 1) / n_pieces)


def best_cut(first: Stage, last: Stage) -> int:
    """The first layer of the second of two stages with which the slower one is as fast as possible. Every
    layer is taken to cost what one of the first stage does, and the head what the last stage took beyond
    that."""
    n_layer = last.layers[1]
    layer_s = first.compute_s / first.n_layer
    head_s = max(0.0, last.compute_s - layer_s * last.n_layer)
    return min(range(1, n_layer), key=lambda cut: max(layer_s * cut, layer_s * (n_layer - cut) + head_s))


def at_once(busy: Mapping[str, float], elapsed_s: float) -> float:
    """What the stages' time of computing says of how they worked together: seconds that they computed, over
    seconds that passed. With two stages 1 is one after the other, 2 is both all the time."""
    return sum(busy.values()) / elapsed_s


def _total(stages: Sequence[Stage]) -> float:
    return sum(stage.compute_s for stage in stages)
