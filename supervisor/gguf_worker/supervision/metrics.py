"""What a supervisor knows of its worker, as one value for a status page or a metrics endpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from gguf_worker.identity import Identity
from gguf_worker.protocol.messages import Capacity, Health, Memory, Ownership
from gguf_worker.supervision.lifecycle import WorkerState


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counts over all lives of a worker; they never fall. What a worker did between its last health and its
    death is not in them."""

    requests: int = 0
    """Answered by the worker, with errors as well."""
    errors: int = 0
    """Answered with an error."""
    rows: int = 0
    """Rows computed."""
    tokens_sampled: int = 0
    compute_us: int = 0
    """Microseconds that were spent in steps."""

    def plus(self, health: Health | None) -> Totals:
        """These and what one life counted."""
        if health is None:
            return self
        return Totals(
            requests=self.requests + health.requests,
            errors=self.errors + health.errors,
            rows=self.rows + health.rows,
            tokens_sampled=self.tokens_sampled + health.tokens_sampled,
            compute_us=self.compute_us + health.compute_us,
        )


@dataclass(slots=True)
class Tally:
    """What is counted over the lives of one worker."""

    totals: Totals = field(default_factory=Totals)
    """Of the lives that are over."""
    causes: Counter[str] = field(default_factory=Counter)
    """Exit causes of the lives that are over, the stops that were asked for included."""
    stderr_lines: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """One look at a supervised worker."""

    state: WorkerState
    generation: int
    """Processes begun so far."""
    pid: int | None
    restarts: int
    """Processes that took the place of one that died."""
    causes: Mapping[str, int]
    """How many processes ended of which exit cause."""
    failure: str | None
    """Why the worker was given up, where it was."""
    identity: Identity | None
    """What the newest ready worker attested; None before there was one. So are the next three."""
    ownership: Ownership | None
    memory: Memory | None
    capacity: Capacity | None
    load_s: float | None
    """Seconds that its load took."""
    uptime_s: float | None
    """Since the process was started; None where there is none."""
    health: Health | None
    """What the newest worker last said of itself: `state` of execution, sessions, cells, queue, resident
    memory. None before it said anything."""
    health_is_fresh: bool
    """Whether it said so just now."""
    in_flight: int
    """Requests that somebody waits for."""
    totals: Totals
    stderr_lines: int
    """Lines that all processes wrote on stderr."""
    stderr_lines_dropped: int
    """Of the newest one's, those that are no longer kept."""
