"""What a generation did and how long it took: one record each, for logs, telemetry and people."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field


@dataclass(slots=True, kw_only=True)
class StageRecord:
    """One place of the route, over all stages that filled it. Times in microseconds."""

    label: str
    """As the stage names itself; the last one's, where it was replaced."""
    forwards: int = 0
    rows: int = 0
    """Rows that were computed, replays included."""
    rows_replayed: int = 0
    queue_us: int = 0
    """Waiting in the stage."""
    compute_us: int = 0
    hop_us: int = 0
    """The round trips, without what the stage itself says that it waited and computed."""
    batch_rows: int = 0
    """Rows of all sessions in the computations, added up; divided by `forwards` it is the mean batch."""
    bytes_out: int = 0
    """Of boundary rows and tokens, to the stage."""
    bytes_in: int = 0
    replays: int = 0
    """How often the stage was lost and brought back."""
    replay_us: int = 0
    """From each loss to the moment when the stage had caught up, added up."""
    kv_cells_freed: int | None = None
    """What the stage acknowledged at the end; None where it could not."""


@dataclass(slots=True, kw_only=True)
class GenerationRecord:
    """One generation."""

    request_id: str
    work_id: str
    prompt_tokens: int = 0
    tokens: int = 0
    """Drawn."""
    started_at: float = 0.0
    """Seconds since 1970; for people."""
    time_to_first_token_us: int | None = None
    """From the begin of the prefill."""
    token_us: list[int] = field(default_factory=list)
    """Of each token after the first: what it took, without what its reader took with the one before."""
    total_us: int = 0
    finish_reason: str = ""
    """stop, length, cancelled, deadline, error."""
    error: str = ""
    """The code, where it is one."""
    stages: list[StageRecord] = field(default_factory=list)

    @property
    def replays(self) -> int:
        return sum(stage.replays for stage in self.stages)

    def to_map(self) -> dict[str, object]:
        """For JSON."""
        return {**asdict(self), "replays": self.replays}
