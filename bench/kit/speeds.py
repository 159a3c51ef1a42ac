"""Decode speeds of several sides in turns, and whether all of them drew the same tokens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kit.ours import Decoded
from kit.report import Side, sides_of
from kit.rounds import Turn, in_turns

Decode = Callable[[Sequence[int], int], Awaitable[Decoded]]
"""Decodes so many tokens behind a prompt, as each side of the kit does."""


@dataclass(slots=True)
class Speeds:
    """Measures the sides, and keeps what each one drew last."""

    prompt: Sequence[int]
    n_tokens: int
    drawn: dict[str, Decoded] = field(default_factory=dict)

    def turn(self, name: str, decode: Decode) -> Turn:
        """For `rounds.in_turns`: gives tokens per second of the decode alone."""

        async def once() -> float:
            found = self.drawn[name] = await decode(self.prompt, self.n_tokens)
            return found.tokens_per_s

        return once

    async def measure(
        self, sides: Mapping[str, Decode], *, rounds: int, further: Mapping[str, Turn] | None = None
    ) -> dict[str, Side]:
        """Sides by name; `further` ones are timed in the same rounds, and nothing is known of their
        tokens."""
        turns = {name: self.turn(name, decode) for name, decode in sides.items()}
        return sides_of(await in_turns({**turns, **(further or {})}, rounds=rounds))

    def differences(self, reference: str) -> dict[str, str]:
        """Of each side that drew others than `reference` did: where they part. Empty where all agree."""
        expected = self.drawn[reference].tokens
        return {
            name: parting(expected, found.tokens)
            for name, found in self.drawn.items()
            if found.tokens != expected
        }

    def token_ms(self) -> dict[str, dict[str, float]]:
        """Where a token's time went, of each side that knows, the last time."""
        return {name: dict(found.token_ms) for name, found in self.drawn.items() if found.token_ms}

    def first_token_ms(self) -> dict[str, float]:
        """How long each side took to the first token, the last time."""
        return {name: round(1000 * found.first_s, 2) for name, found in self.drawn.items()}


def parting(expected: Sequence[int], found: Sequence[int]) -> str:
    """Where two texts part, for a reader. They must."""
    both = min(len(expected), len(found))
    for place, (one, other) in enumerate(zip(expected[:both], found[:both], strict=True)):
        if one != other:
            return f"token {place} of {len(expected)} is {other}, not {one}"
    return f"{len(found)} tokens, not {len(expected)}"
