"""The identity of a shard: artifact, recipe and range."""

from __future__ import annotations

from dataclasses import dataclass

from gguf_worker._schema import Uint32, WireMap
from gguf_worker.identity.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity(WireMap):
    """What a worker attests to hold, or what an `open` asks it to be."""

    artifact: str
    """sha256 of the artifact, 64 lower-case hexadecimal digits."""
    start: Uint32
    """First layer."""
    end: Uint32
    """One past the last layer."""
    recipe: Recipe
    shard: str | None = None
    """sha256 of the file that the library maps; attested, never asked for."""

    def asked(self) -> Identity:
        """The same identity without `shard`, as an `open` names it."""
        return Identity(artifact=self.artifact, start=self.start, end=self.end, recipe=self.recipe)

    def __str__(self) -> str:
        return f"{self.artifact[:12]}[{self.start}:{self.end}]"
