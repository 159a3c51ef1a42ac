"""Layer ranges as people write them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from gguf_worker.cli.errors import CommandError

Range = tuple[int, int]
"""Layers `[start, end)`."""

_NUMBER = "[0-9]{1,9}"


def parse_layers(text: str) -> Range:
    """`"8:16"` is layers 8 to 15. Raises CommandError."""
    match = re.fullmatch(f"({_NUMBER}):({_NUMBER})", text)
    if match is None:
        raise CommandError(f"--layers {text!r} is not a range", remedy="write START:END, such as 0:16")
    layers = int(match[1]), int(match[2])
    if layers[0] >= layers[1]:
        raise CommandError(
            f"--layers {text} is empty", remedy="END is one past the last layer, so it is larger"
        )
    return layers


def parse_cuts(text: str) -> tuple[int, ...]:
    """`"10,20"` cuts before layer 10 and before layer 20. Raises CommandError."""
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch(_NUMBER, word) for word in words):
        raise CommandError(f"--cuts {text!r} is not a list of layers", remedy="write it as 10,20")
    cuts = tuple(int(word) for word in words)
    if any(first >= second for first, second in pairwise((0, *cuts))):
        raise CommandError(
            f"--cuts {text} does not rise from 1", remedy="write each cut once, smallest first"
        )
    return cuts


def ranges_of_cuts(cuts: Sequence[int], n_layer: int) -> tuple[Range, ...]:
    """The shards between the cuts. Raises CommandError for a cut outside the model."""
    if cuts and cuts[-1] >= n_layer:
        raise CommandError(
            f"cut {cuts[-1]} is outside the model, which has {n_layer} layers",
            remedy=f"cuts lie between 1 and {n_layer - 1}",
        )
    return tuple(pairwise((0, *cuts, n_layer)))
