"""Bytes as people read them."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(n_bytes: float) -> str:
    """`1536` is `1.5 KiB`."""
    for unit in _UNITS[:-1]:
        if abs(n_bytes) < 1024:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.1f} {_UNITS[-1]}"
