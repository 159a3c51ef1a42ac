"""Numbers of threads to measure with."""

from __future__ import annotations

import argparse
import os

import psutil


def add_threads(parser: argparse.ArgumentParser) -> None:
    """The option that takes the place of the usual numbers."""
    parser.add_argument(
        "--threads",
        type=parse,
        default=usual(),
        metavar="N,N",
        help="numbers of threads to measure with (one, and one for each physical core)",
    )


def parse(text: str) -> tuple[int, ...]:
    """Of numbers with commas. Raises ValueError for others."""
    found = tuple(int(word) for word in text.split(","))
    if min(found) < 1:
        raise ValueError("a number of threads is at least 1")
    return found


def usual() -> tuple[int, ...]:
    """One, and all physical cores where there are more."""
    return tuple(sorted({1, all_cores()}))


def all_cores() -> int:
    """Physical ones that this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, psutil.cpu_count(logical=False) or usable)
