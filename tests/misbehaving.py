"""Makes executables of the programs in process/children, so that they can be started as workers."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

CHILDREN = Path(__file__).parent / "process" / "children"


def executable(folder: Path, behaviour: str) -> Path:
    """A program in `folder` that starts children/misbehave.py with `behaviour`."""
    path = folder / f"worker-{behaviour}"
    command = shlex.join([sys.executable, str(CHILDREN / "misbehave.py"), behaviour])
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o755)
    return path
