"""A ledger in memory, which shows what streams tell it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gguf_worker.errors import GgufWorkerError
from gguf_worker.node.ledger import Use, WorkSettled
from gguf_worker.work import Work


@dataclass(slots=True)
class Entry:
    """One session of a work."""

    ledger: MemoryLedger
    work: Work
    artifact: str
    layers: tuple[int, int]
    uses: list[Use] = field(default_factory=list)
    reason: str | None = None
    """None while it is open."""

    @property
    def rows(self) -> int:
        return sum(use.rows for use in self.uses)

    async def count(self, use: Use) -> None:
        if self.ledger.failure is not None:
            raise self.ledger.failure
        self.uses.append(use)

    async def close(self, finish_reason: str) -> None:
        if self.reason is not None:
            return
        self.reason = finish_reason
        if finish_reason:
            self.ledger.settled.setdefault(self.work.work_id, finish_reason)


@dataclass(slots=True)
class MemoryLedger:
    """Everything that was opened, in order."""

    entries: list[Entry] = field(default_factory=list)
    settled: dict[str, str] = field(default_factory=dict)
    failure: GgufWorkerError | None = None
    """Raised in place of counting."""

    async def open(self, work: Work, *, artifact: str, layers: tuple[int, int]) -> Entry:
        if work.work_id in self.settled:
            raise WorkSettled(f"work {work.work_id} is settled")
        entry = Entry(self, work, artifact, layers)
        self.entries.append(entry)
        return entry
