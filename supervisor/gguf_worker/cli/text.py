"""Figures and bytes as people read them."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Column, Table

from gguf_worker._text import printable as printable
from gguf_worker._units import size as size

_TURNING = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
"""Unicode's explicit formatting of bidirectional text."""


def harmless(text: str) -> str:
    """`text` as it may be written to a terminal: line ends and tabs as they are, every other control
    character and what turns the direction of writing as an escape."""
    return "".join(
        character.encode("unicode_escape").decode() if _steers(character) else character for character in text
    )


def _steers(character: str) -> bool:
    if unicodedata.category(character) in ("Cc", "Cs"):
        return character not in "\n\t"
    return unicodedata.bidirectional(character) in _TURNING


def one_line(text: str) -> str:
    """`text` with every run of white space, line ends included, turned into one space, and printable."""
    return printable(" ".join(text.split()))


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
