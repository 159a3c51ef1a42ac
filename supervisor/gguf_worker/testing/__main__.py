"""Makes every failure happen on this machine and prints what came of it: `python -m gguf_worker.testing`.

Exit status 0 where every promise is kept, 1 where one is not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from gguf_worker.testing import report
from gguf_worker.testing.cell import CellResult
from gguf_worker.testing.figures.cycles import start_stop_cycles
from gguf_worker.testing.figures.engine import killed_engine
from gguf_worker.testing.figures.figure import Figure
from gguf_worker.testing.figures.giveup import crash_loops
from gguf_worker.testing.figures.latency import detection_latency
from gguf_worker.testing.figures.orphans import killed_supervisors
from gguf_worker.testing.figures.replay import replayed_route
from gguf_worker.testing.figures.starvation import starved_machine
from gguf_worker.testing.figures.storm import random_kills
from gguf_worker.testing.matrix import cells_here, kill_matrix, run_matrix

MATRIX = "matrix"


def main() -> int:
    options = _options()
    only = set(options.only or (MATRIX, *_figures(options)))
    kept = True
    if MATRIX in only:
        kept = anyio.run(_run_matrix, options) and kept
    if measured := _measure(options, only):
        kept = all(figure.is_kept for figure in measured) and kept
        if options.evidence is not None:
            content = {**_circumstances(options), "figures": report.figures_json(measured)}
            report.write(options.evidence / "faults-figures.json", content)
    return 0 if kept else 1


async def _run_matrix(options: argparse.Namespace) -> bool:
    def show(result: CellResult) -> None:
        print(report.cell_line(result), flush=True)

    all_cells = kill_matrix()
    cells = cells_here()
    results = await run_matrix(cells * options.repeat, on_result=show)
    print("\n" + report.matrix_table(results, all_cells) + "\n", flush=True)
    if options.evidence is not None:
        content = {
            **await report.circumstances(_command(options)),
            "cells": report.matrix_json(results, all_cells),
        }
        report.write(options.evidence / "faults-matrix.json", content)
    return not any(result.problems for result in results)


def _measure(options: argparse.Namespace, only: set[str]) -> list[Figure]:
    measured = []
    for name, measure in _figures(options).items():
        if name in only:
            measured.append(measure())
            print(report.figure_line(measured[-1]), flush=True)
    return measured


def _figures(options: argparse.Namespace) -> dict[str, Callable[[], Figure]]:
    """By the names that `--only` takes. Those on the real engine need a model."""
    figures: dict[str, Callable[[], Figure]] = {
        "storm": _on_loop(random_kills, options.storm, options.seed),
        "cycles": _on_loop(start_stop_cycles, options.cycles),
        "limit": _on_loop(crash_loops),
    }
    if sys.platform == "linux":  # elsewhere nothing tells of the end of a process that is not our child
        figures["latency"] = _on_loop(detection_latency, options.kills)
        figures["supervisors"] = partial(killed_supervisors, options.supervisors // 5)
    if options.model is not None:
        figures["engine"] = partial(_killed_engine, options.model)
        figures["replay"] = _on_loop(replayed_route, options.model)
        figures["starved"] = _on_loop(starved_machine, options.model, options.starved_seconds)
    return figures


def _on_loop(measure: Callable[..., Awaitable[Figure]], *arguments: object) -> Callable[[], Figure]:
    return lambda: anyio.run(measure, *arguments)


def _killed_engine(model: Path) -> Figure:
    """With a cache of its own, so that the load takes its time: every byte is hashed."""
    with TemporaryDirectory(prefix="gguf-worker-") as cache:
        return anyio.run(killed_engine, model, Path(cache))


def _circumstances(options: argparse.Namespace) -> dict[str, object]:
    return anyio.run(report.circumstances, _command(options))


def _command(options: argparse.Namespace) -> str:
    """The command with its counts, and without a place on this machine."""
    counts = ("kills", "supervisors", "storm", "cycles", "starved_seconds", "seed", "repeat")
    words = [f"--{name.replace('_', '-')} {getattr(options, name):g}" for name in counts]
    model = ["--model MODEL"] if options.model is not None else []
    only = [f"--only {' '.join(options.only)}"] if options.only else []
    return " ".join(["python -m gguf_worker.testing", *only, *words, *model])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gguf_worker.testing", description=__doc__.splitlines()[0] if __doc__ else None
    )
    names = (MATRIX, "latency", "supervisors", "storm", "cycles", "limit", "engine", "replay", "starved")
    parser.add_argument("--only", nargs="+", choices=names, help="what to run; everything by default")
    parser.add_argument("--model", type=Path, help="a GGUF file for the figures on the real engine")
    parser.add_argument("--evidence", type=Path, help="a folder that the JSON files are written to")
    parser.add_argument("--kills", type=int, default=200, help="for the detection latency")
    parser.add_argument("--supervisors", type=int, default=100, help="to be killed, a fifth in each state")
    parser.add_argument("--storm", type=int, default=1000, help="random kills under load")
    parser.add_argument("--seed", type=int, default=1, help="of the random kills")
    parser.add_argument("--cycles", type=int, default=200, help="starts and stops")
    parser.add_argument("--starved-seconds", type=float, default=300.0, help="on a starved machine")
    parser.add_argument("--repeat", type=int, default=1, help="rounds of the matrix")
    options = parser.parse_args()
    if options.model is None and {"engine", "starved"} & set(options.only or ()):
        parser.error("engine and starved need --model, a GGUF file")
    return options


if __name__ == "__main__":
    sys.exit(main())
