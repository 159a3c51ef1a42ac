"""What a terminal shows of a service while it runs: a table of its workers, below the log."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gguf_worker._tasks import plain_task_group
from gguf_worker.cli.text import printable, rate, show_rate, size
from gguf_worker.logs import LogWriter
from gguf_worker.serving.service import Service
from gguf_worker.serving.shard import Look
from gguf_worker.supervision.lifecycle import WorkerState

LOOK_S = 1.0
"""Between two looks at the workers."""

COLUMNS = ("layers", "state", "pid", "restarts", "resident", "sessions", "KV cells", "tokens/s")

STYLES = {
    WorkerState.READY: "green",
    WorkerState.BACKOFF: "red",
    WorkerState.FAILED: "bold red",
    WorkerState.DRAINING: "yellow",
}


class View:
    """What was seen last. The drawing thread reads it and waits for nobody, nor does anybody wait for it."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._looks: Sequence[Look] = ()
        self._rates: Mapping[str, float | None] = {}
        self._looked_at = time.monotonic()

    def take(self, looks: Sequence[Look]) -> None:
        """The next look. Speed is what was computed since the one before it."""
        now = time.monotonic()
        before = {look.layers: look.metrics.totals.rows for look in self._looks}
        elapsed_s = now - self._looked_at
        self._rates = {
            look.layers: rate(look.metrics.totals.rows - before.get(look.layers, 0), elapsed_s)
            for look in looks
        }
        self._looks, self._looked_at = looks, now

    def render(self) -> Table:
        """The table, with the service's own line above it."""
        table = Table(title=Text(printable(self._service.summary())), title_justify="left")
        for name in COLUMNS:
            table.add_column(name, justify="left" if name == "state" else "right")
        for look in self._looks:
            table.add_row(*self._row(look))
        return table

    def _row(self, look: Look) -> list[Text]:
        metrics = look.metrics
        health, capacity = metrics.health, metrics.capacity
        cells = [
            look.layers,
            metrics.state.value,
            "-" if metrics.pid is None else str(metrics.pid),
            str(metrics.restarts),
            "-" if health is None else size(health.rss_bytes),
            "-" if health is None or capacity is None else f"{health.sessions}/{capacity.max_sessions}",
            "-" if health is None or capacity is None else f"{health.kv_cells_used}/{capacity.kv_cells}",
            show_rate(self._rates.get(look.layers)),
        ]
        row = [Text(cell) for cell in cells]
        row[1].stylize(STYLES.get(metrics.state, ""))
        return row


@asynccontextmanager
async def live_view(service: Service, log: LogWriter) -> AsyncIterator[None]:
    """Draws the table on stderr while this is open; the log is written above it."""
    console = Console(stderr=True)
    view = View(service)
    write_before = log.write
    with Live(console=console, get_renderable=view.render, transient=True):
        log.write = lambda line: console.print(Text(line), soft_wrap=True)
        try:
            async with plain_task_group() as tasks:
                tasks.start_soon(_keep_looking, service, view)
                yield
                tasks.cancel_scope.cancel()
        finally:
            log.write = write_before


async def _keep_looking(service: Service, view: View) -> None:
    while True:
        view.take(await service.look())
        await anyio.sleep(LOOK_S)
