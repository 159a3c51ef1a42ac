"""The bench of a hop runs; what it measures on a busy machine says nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[3] / "bench" / "hop.py"


def test_the_bench_of_a_hop_runs() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(BENCH), "no model is loaded", "--tiny", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    decode, prefill = json.loads(done.stdout)["sections"]
    assert decode["title"] == "a decode row, 16 KiB there and back"
    assert prefill["title"] == "a prefill of 512 rows, 8,192 KiB there and back"
    assert all(side["median"] > 0 for section in (decode, prefill) for side in section["sides"])
