"""The table and the JSON of what was measured, with the machine and the versions that it was measured on."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

import gguf_worker
from gguf_worker._machine import describe_machine
from gguf_worker.supervision.life import Life, WorkerCommand
from gguf_worker.supervision.pin import installed_library_version
from gguf_worker.supervision.settings import WorkerSettings
from gguf_worker.testing.cell import Cell, CellResult, Failure, NoCell
from gguf_worker.testing.figures.figure import Figure, milliseconds
from gguf_worker.testing.phases import Phase

_WIDTH = 25


# ---- for people ---------------------------------------------------------------------------------


def cell_line(result: CellResult) -> str:
    """One line of the matrix as it runs."""
    latency = "" if result.latency_s is None else f"{milliseconds(result.latency_s):9.2f} ms"
    told = f"{result.told} of {result.in_flight} told"
    mark = "ok  " if not result.problems else "FAIL"
    head = f"{mark} {result.failure:{_WIDTH}} {result.phase:8} {result.found:26}"
    return f"{head} {latency:12} {told}" + "".join(f"\n     {problem}" for problem in result.problems)


def matrix_table(
    results: Sequence[CellResult], all_cells: Mapping[tuple[Failure, Phase], Cell | NoCell]
) -> str:
    """A table of failures and phases: what was found and how soon; then the cells that there are not."""
    by_cell = {(result.failure, result.phase): result for result in results}
    columns = [f"{phase:>10}" for phase in Phase]
    lines = [f"{'':{_WIDTH}}" + "".join(columns)]
    for failure in Failure:
        entries = [_entry(by_cell.get((failure, phase)), all_cells[failure, phase]) for phase in Phase]
        lines.append(f"{failure:{_WIDTH}}" + "".join(f"{entry:>10}" for entry in entries))
    lines.append(
        "\nmilliseconds from the failure to the first caller who was told of it; lives: it did not end"
    )
    for (failure, phase), cell in all_cells.items():
        if isinstance(cell, NoCell):
            lines.append(f"no cell for {failure} in {phase}: {cell.reason}")
    return "\n".join(lines)


def _entry(result: CellResult | None, cell: Cell | NoCell) -> str:
    if result is None:
        return "-" if isinstance(cell, NoCell) else "not run"
    if result.problems:
        return "FAIL"
    return "lives" if result.latency_s is None else f"{milliseconds(result.latency_s):.1f}"


def figure_line(figure: Figure) -> str:
    """One figure, with what it promises."""
    values = ", ".join(f"{name} {value}" for name, value in figure.values.items())
    mark = "ok  " if figure.is_kept else "FAIL"
    text = f"{mark} {figure.name}: {figure.promise}\n     {values}"
    return text + "".join(f"\n     {problem}" for problem in figure.problems)


# ---- for programs -------------------------------------------------------------------------------


async def circumstances(command: str) -> dict[str, Any]:
    """Date, command, machine and versions; nothing that names a place on the machine."""
    async with Life(WorkerCommand(engine="fake"), WorkerSettings()) as life:
        worker_version = life.hello.worker_version
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "machine": {**describe_machine(), "memory_bytes": psutil.virtual_memory().total},
        "versions": {
            "gguf_worker": gguf_worker.__version__,
            "worker": worker_version,
            "python": platform.python_version(),
            "llama_cpp_python": installed_library_version(),
        },
    }


def matrix_json(
    results: Sequence[CellResult], all_cells: Mapping[tuple[Failure, Phase], Cell | NoCell]
) -> list[dict[str, Any]]:
    """Every cell, those that there are not with the reason."""
    rows = [
        {
            "failure": result.failure.value,
            "phase": result.phase.value,
            "found": result.found,
            "latency_ms": None if result.latency_s is None else milliseconds(result.latency_s),
            "in_flight": result.in_flight,
            "told": result.told,
            "problems": list(result.problems),
        }
        for result in results
    ]
    lacking = [
        {"failure": failure.value, "phase": phase.value, "no_cell": cell.reason}
        for (failure, phase), cell in all_cells.items()
        if isinstance(cell, NoCell)
    ]
    return rows + lacking


def figures_json(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """Every figure with its promise."""
    return [
        {
            "name": figure.name,
            "promise": figure.promise,
            "kept": figure.is_kept,
            "values": dict(figure.values),
            "problems": list(figure.problems),
        }
        for figure in figures
    ]


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Writes JSON that a reader can compare line by line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
