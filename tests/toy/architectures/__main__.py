"""Writes toy models from a shell: `python -m toy.architectures [NAME... FOLDER]`."""

from __future__ import annotations

import sys
from pathlib import Path

from toy.architectures import VARIANTS, build


def main(arguments: list[str]) -> None:
    """Prints the names of all variants, or writes those that are named and prints their paths."""
    if not arguments:
        print("\n".join(VARIANTS))
        return
    *names, folder = arguments
    for name in names:
        print(build(VARIANTS[name], Path(folder)))


main(sys.argv[1:])
