"""Writes the golden frames to the worker as files, one each, for fuzz-stream to start from.

python worker_c/tests/fuzz/make_corpus.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

FRAMES = Path(__file__).parents[3] / "tests" / "golden" / "frames.tsv"


def main() -> None:
    """Fills the folder that the command line names."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for line in FRAMES.read_text(encoding="ascii").splitlines():
        name, direction, _verdict, data, _message = line.split("\t")
        if direction == "to_worker":
            (folder / name).write_bytes(bytes.fromhex(data))


if __name__ == "__main__":
    main()
