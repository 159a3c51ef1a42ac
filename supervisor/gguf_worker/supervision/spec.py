"""What a worker shall hold."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass, field
from typing import TypeVar

from gguf_worker.identity import Recipe
from gguf_worker.protocol.messages import Estimate, Load, ShardRequest
from gguf_worker.supervision.settings import default_cache_dir

ShardRequestT = TypeVar("ShardRequestT", bound=ShardRequest)


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """One shard and how it is executed."""

    model: str
    """A GGUF file, the first file of a split set, an exported slice; or a fake engine's specification."""
    _: KW_ONLY
    layers: tuple[int, int] = (0, 0)
    """`[start, end)`; end 0 means up to the model's last layer."""
    recipe: Recipe = field(default_factory=Recipe)
    artifact: str | None = None
    """sha256 that the artifact must have, where it is known."""
    engine: str = "llama"
    max_sessions: int = 4
    mmap: bool = True
    mlock: bool = False
    numa: str | None = None
    """How llama.cpp places its threads on a machine of several memory nodes: distribute, isolate or numactl;
    None is not at all. It changes no result."""
    check_memory: bool = True
    """Whether a load that needs more memory than there is here is refused before it takes any."""
    cache_dir: str | None = None
    """Where shard files and digests are kept; None is the default cache folder."""
    n_stages: int = 0
    """Of the route that it will be a stage of: a step leaves decode rows for the others, so that all stages
    compute at the same time. 0 is not known, and guessed from the layers. It changes no identity."""
    fault_plan: str | None = None
    """Failures to make on purpose; fake engine only."""

    @property
    def is_alone(self) -> bool:
        """Whether it is known to be the whole model, which leaves nothing to other stages."""
        return self.layers == (0, 0) or (self.n_stages == 1 and self.layers[0] == 0)

    def load_request(self, *, memory_available: int = 0) -> Load:
        """The request that loads it, in at most `memory_available` bytes; 0 is no check."""
        return self._request(Load, memory_available)

    def estimate_request(self) -> Estimate:
        """The request that asks what this would take."""
        return self._request(Estimate, 0)

    def _request(self, kind: type[ShardRequestT], memory_available: int) -> ShardRequestT:
        return kind(
            model=os.fspath(self.model),
            layers=self.layers,
            recipe=self.recipe,
            artifact=self.artifact,
            max_sessions=self.max_sessions,
            mmap=self.mmap,
            mlock=self.mlock,
            cache_dir=self.cache_dir or str(default_cache_dir()),
            memory_available=memory_available,
            numa=self.numa,
            n_stages=self.n_stages,
        )
