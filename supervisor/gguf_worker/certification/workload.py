"""What is computed for a certificate: sequences of tokens, the same for every run. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """Tokens of one session: a prompt that is prefilled, and a continuation that is decoded row by row."""

    name: str
    prompt: tuple[int, ...]
    continuation: tuple[int, ...]

    @property
    def n_rows(self) -> int:
        return len(self.prompt) + len(self.continuation)


def default_prompts() -> tuple[str, ...]:
    """Texts of different kinds and lengths: prose, code, and another alphabet."""
    return (
        "The capital of France is",
        "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
        "Once upon a time, in a village at the foot of the mountains, there lived a clockmaker who had never "
        "been late in his life. Every morning at six he opened the shutters, wound the great clock in the "
        "window, and wrote down in a small green book what the weather was going to be. One morning",
        "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。",
    )


def random_tokens(count: int, n_vocab: int, seed: int = 1) -> tuple[int, ...]:
    """`count` token ids below `n_vocab`, the same everywhere for the same seed: what no text would make."""
    generator = random.Random(seed)
    return tuple(generator.randrange(n_vocab) for _ in range(count))
