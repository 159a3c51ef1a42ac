"""Large blocks are not faulted in again and again, and what is loaded is not looked through."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

COUNT_FAULTS = """
import resource
from gguf_worker._memory import keep_large_blocks

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        block = b"x" * (8 * 1024 * 1024)
        copy = block[1:]
        del block, copy
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

assert keep_large_blocks()
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc's allocator only")
def test_large_blocks_are_kept() -> None:
    done = subprocess.run([sys.executable, "-c", COUNT_FAULTS], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 200  # of 40,000 pages


KEEP_WHAT_IS_LOADED = """
import gc
from gguf_worker._memory import keep_what_is_loaded

loaded = [[] for _ in range(1000)]
keep_what_is_loaded()
tracked = {id(one) for one in gc.get_objects()}
assert not any(id(one) in tracked for one in loaded)
assert gc.isenabled()
print(gc.get_freeze_count(), gc.get_threshold()[2])
"""


def test_what_is_loaded_is_left_out_of_collections() -> None:
    done = subprocess.run(
        [sys.executable, "-c", KEEP_WHAT_IS_LOADED], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    frozen, rarity = map(int, done.stdout.split())
    assert frozen > 1000
    assert rarity == 100
