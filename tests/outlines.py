"""What an estimate would be without a model's outline."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Unpack

from shard_engine import Memory, OpenOptions, estimate


def estimate_by_file(model: Path, **options: Unpack[OpenOptions]) -> Memory:
    """As `estimate`, which asks the library about the whole file where this process may write none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        return estimate(model, **options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
