"""How much is kept for stages that are lost, and how many losses a sequence outlives. No I/O: time is an
argument."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from gguf_worker.errors import StageLost
from gguf_worker.generation.rows import RowBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """How a route brings back stages that are lost. Times are in seconds."""

    memory_bytes: int = 256 << 20
    """Most bytes of boundary rows that all sequences of the route keep together. A stage is brought back
    fastest from the rows that it was given; without them, stages before it compute them again."""
    max_losses: int = 5
    """Most losses within `window_s` that one sequence outlives, over all its stages. 0: the first one ends
    it."""
    window_s: float = 600.0
    wait_s: float = 300.0
    """How long a stage may take to come back; starting a worker loads its shard."""

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "max_losses", "window_s", "wait_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"ReplaySettings.{name} is {getattr(self, name)}; it must be at least 0")


class Replay:
    """What the sequences of one route share for it."""

    def __init__(self, settings: ReplaySettings | None = None, *, chunk_invariant: bool = False) -> None:
        self.settings = settings or ReplaySettings()
        self.chunk_invariant = chunk_invariant
        """Whether a row has the same bits whatever it is computed with, as a certificate says: then it is
        computed again in pieces that are as long as possible. Otherwise in the pieces of the first time."""
        self.budget = RowBudget(self.settings.memory_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A stage that was lost."""

    at: float
    """Of the caller's clock, in seconds."""
    label: str
    error: StageLost

    def __str__(self) -> str:
        return f"{self.label}: {self.error.message}"


@dataclass(slots=True)
class Losses:
    """The losses of one sequence."""

    settings: ReplaySettings
    _recent: deque[Loss] = field(default_factory=deque)

    def add(self, loss: Loss) -> None:
        """One more."""
        self._recent.append(loss)

    def check(self, now: float) -> None:
        """Raises StageLost where there were more than a sequence outlives; the message names each of them."""
        while self._recent and self._recent[0].at <= now - self.settings.window_s:
            self._recent.popleft()
        if len(self._recent) <= self.settings.max_losses:
            return
        last = self._recent[-1].error
        if self.settings.max_losses == 0:
            raise last
        raise StageLost(
            f"{len(self._recent)} stages were lost within {self.settings.window_s:g} s, more than the "
            f"{self.settings.max_losses} that a sequence outlives: {'; '.join(map(str, self._recent))}",
            code="replay_limit",
            fields={**last.fields, "losses": str(len(self._recent))},
        ) from last
