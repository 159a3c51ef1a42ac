"""Progress on stderr: live bars on a terminal, one plain line per change elsewhere, nothing with --json."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from gguf_worker.cli.text import printable, size
from gguf_worker.protocol.messages import Progress


class Display(Protocol):
    """Shows how far each of several workers is. A context manager: leaving it stops the drawing."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def update(self, index: int, progress: Progress) -> None:
        """Worker `index` has come so far."""


def display(labels: Sequence[str], *, silent: bool) -> Display:
    """The display that suits stderr; `labels` name the workers."""
    if silent:
        return Silent()
    labels = [printable(label) for label in labels]
    return LiveBars(labels) if sys.stderr.isatty() else PlainLines(labels)


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def update(self, index: int, progress: Progress) -> None:
        pass


class PlainLines(Silent):
    """A line when a worker begins a phase: short enough for a log file."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = labels
        self._shown: dict[int, str] = {}

    def update(self, index: int, progress: Progress) -> None:
        if self._shown.get(index) != progress.phase:
            self._shown[index] = progress.phase
            amount = f" {size(progress.total)}" if _counts_bytes(progress) else ""
            print(f"{self._labels[index]}: {progress.phase}{amount}", file=sys.stderr, flush=True)


class LiveBars:
    """One bar per worker, all at once. The bars vanish at the end: what comes after them says the result."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            TextColumn("{task.fields[phase]:8}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[amount]:>20}", markup=False),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._tasks = [
            self._bars.add_task(label, total=None, phase="starting", amount="") for label in labels
        ]

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def update(self, index: int, progress: Progress) -> None:
        self._bars.update(
            self._tasks[index],
            phase=progress.phase,
            completed=progress.done,
            total=progress.total,
            amount=f"{size(progress.done)} of {size(progress.total)}" if _counts_bytes(progress) else "",
        )


def _counts_bytes(progress: Progress) -> bool:
    """A phase that has nothing to count, such as the warm-up, has a total of 1."""
    return progress.total > 1
