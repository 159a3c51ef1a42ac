"""A model as a chain of engines in this process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

from architectures.workload import SETTINGS, recipe
from reference import Feed
from shard_engine import Engine, Entry, Output, Result


class CutChain:
    """Engines that cover all layers, with the workload's sessions open in each.

    Raises ShardEngineError as `Engine` does.
    """

    def __init__(
        self, model: Path, n_layer: int, cuts: Sequence[int], cache_dir: Path, *, chunk: int = 0
    ) -> None:
        with ExitStack() as stack:
            self._engines = [
                stack.enter_context(open_shard(model, layers, cache_dir, chunk=chunk))
                for layers in pairwise((0, *cuts, n_layer))
            ]
            self._sessions = [
                [engine.session_open() for _ in range(SETTINGS.max_sessions)] for engine in self._engines
            ]
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def forward_together(self, feeds: Sequence[Feed]) -> list[bytes]:
        """Logits of every row of each feed: one step in each engine."""
        rows: list[bytes | None] = [None] * len(feeds)
        for engine, sessions in zip(self._engines, self._sessions, strict=True):
            last = engine is self._engines[-1]
            entries = [
                Entry(
                    session=sessions[feed.session],
                    position=feed.position,
                    tokens=feed.tokens if hidden is None else None,
                    hidden=hidden,
                    output=Output.LOGITS_ALL if last else Output.HIDDEN,
                )
                for feed, hidden in zip(feeds, rows, strict=True)
            ]
            rows = [_rows(result) for result in engine.step(entries)]
        return [row for row in rows if row is not None]


def open_shard(model: Path, layers: tuple[int, int], cache_dir: Path, *, chunk: int = 0) -> Engine:
    """One shard with the workload's recipe; chunk 0 leaves the engine's own."""
    return Engine(
        model, layers=layers, recipe=recipe(chunk), max_sessions=SETTINGS.max_sessions, cache_dir=cache_dir
    )


def _rows(result: Result) -> bytes:
    if result.error is not None:
        raise result.error
    assert result.rows is not None
    return result.rows.data
