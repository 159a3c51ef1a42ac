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
    command = [sys.executable, str(BENCH), "--tiny", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    decode, prefill = json.loads(done.stdout)
    assert (decode["load"], decode["bytes"]) == ("decode", 16 * 1024)
    assert (prefill["load"], prefill["bytes"]) == ("prefill", 8 * 1024 * 1024)
    assert decode["hop_ms"] > 0
    assert prefill["ratio"] > 0
