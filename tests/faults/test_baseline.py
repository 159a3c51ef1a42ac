"""Baselines: what is left behind is named, what is not is not."""

from __future__ import annotations

import gc
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gguf_worker.testing import Baseline, LeftBehind


@contextmanager
def _descriptor(folder: Path) -> Iterator[None]:
    number = os.open(folder, os.O_RDONLY)
    try:
        yield
    finally:
        os.close(number)


@contextmanager
def _process(_: Path) -> Iterator[None]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield
        process.kill()


@contextmanager
def _thread(_: Path) -> Iterator[None]:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="a-thread-of-this-test")
    thread.start()
    yield
    end.set()
    thread.join()


@contextmanager
def _shared_memory(_: Path) -> Iterator[None]:
    path = Path(f"/dev/shm/gguf-worker-test-{os.getpid()}")
    path.write_bytes(b"x")
    yield
    path.unlink()


@pytest.mark.parametrize(
    ("leave", "words"),
    [
        (_descriptor, "descriptor"),
        (_process, "(sleep)"),
        (_thread, "a-thread-of-this-test"),
        pytest.param(
            _shared_memory,
            "shared memory gguf-worker-test-",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="there is no /dev/shm"),
        ),
    ],
)
def test_what_is_left_behind_is_named(leave, words: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """While it is there the baseline fails and says what it is; then it holds again."""
    baseline = Baseline()
    with baseline, leave(tmp_path):
        (left,) = baseline.left()
        assert words in left
        with pytest.raises(LeftBehind, match="left behind: ") as caught:
            baseline.__exit__(None, None, None)
        assert caught.value.left == (left,)


def test_memory_that_grows_is_told_where_it_is_limited() -> None:
    """Touched pages count; without a limit nobody looks.

    A mapping of its own, since an allocator may serve any size from pages that are resident already.
    """
    gc.collect()  # what other tests left must not be given back in the middle
    baseline, generous = Baseline(resident_growth_bytes=8 << 20), Baseline()
    with generous, baseline, mmap.mmap(-1, 128 << 20) as kept:
        for page in range(0, len(kept), mmap.PAGESIZE):
            kept[page] = 1
        (left,) = baseline.left()
        assert "bytes of resident memory" in left
        assert generous.left() == ()


def test_error_of_the_body_is_not_hidden() -> None:
    """A body that failed has left what it left; its own error is what counts."""
    baseline = Baseline().__enter__()
    number = os.open("/", os.O_RDONLY)
    try:
        assert baseline.left()
        baseline.__exit__(KeyError, KeyError("body"), None)
    finally:
        os.close(number)
