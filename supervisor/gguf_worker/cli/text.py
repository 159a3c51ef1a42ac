"""Figures and bytes as people read them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Column, Table

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def printable(text: str) -> str:
    """`text` with every character that a terminal might act upon, or that is none, as an escape: what files
    and their names hold must not steer the terminal."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def one_line(text: str) -> str:
    """`text` with every run of white space, line ends included, turned into one space, and printable."""
    return printable(" ".join(text.split()))


def size(n_bytes: float) -> str:
    """`1536` is `1.5 KiB`."""
    for unit in _UNITS[:-1]:
        if abs(n_bytes) < 1024:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.1f} {_UNITS[-1]}"


def rate(count: int, seconds: float) -> float | None:
    """Things per second; None where nothing was measured."""
    return count / seconds if count > 0 and seconds > 0 else None


def show_rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in plain characters, numbers to the right, for output that is not a terminal."""
    table = [list(columns), *([printable(cell) for cell in row] for row in rows)]
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
    """One object on stdout, in ASCII: any encoding of stdout carries that, and no terminal acts upon it."""
    print(json.dumps(value, indent=2))
