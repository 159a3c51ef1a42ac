"""Figures and bytes as people read them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Column, Table

from gguf_worker.cli.errors import CommandError

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(n_bytes: float) -> str:
    """`1536` is `1.5 KiB`."""
    for unit in _UNITS[:-1]:
        if abs(n_bytes) < 1024:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.1f} {_UNITS[-1]}"


def parse_size(text: str) -> int:
    """`"10G"`, `"10GiB"` and `"512 MiB"` in bytes, by powers of 1024. Raises CommandError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if match is None:
        raise CommandError(f"{text!r} is not a size", remedy="write it as 500M or 10G")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))


def rate(count: int, seconds: float) -> float | None:
    """Things per second; None where nothing was measured."""
    return count / seconds if count > 0 and seconds > 0 else None


def show_rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in plain characters, numbers to the right, for output that is not a terminal."""
    table = [list(columns), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(columns))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in table
    )


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stderr: drawn on a terminal, in plain characters elsewhere."""
    if not sys.stderr.isatty():
        print(plain_table(columns, rows), file=sys.stderr)
        return
    table = Table(*(Column(name, justify="right") for name in columns))
    for row in rows:
        table.add_row(*row)
    Console(stderr=True).print(table)


def print_json(value: Mapping[str, object] | Sequence[object]) -> None:
    """One object on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))
