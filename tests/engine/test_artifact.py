"""Artifacts: identity by content, and files that change or lie."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import toy
from shard_engine import Engine, ShardEngineError, Status, inspect


def sha256(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


def test_digest_of_one_file(build_toy: Callable[[str], Path]) -> None:
    """A single file is named by its own sha256."""
    model = build_toy("llama-q8_0-tied")
    assert inspect(model).artifact_sha256 == sha256(model).hex()


def test_digest_of_a_split_set(build_toy: Callable[[str], Path]) -> None:
    """A split set is named by the sha256 of its files' digests in order."""
    info = inspect(build_toy("llama-split"))
    files = [Path(file.path) for file in info.files]
    assert len(files) == 3
    assert [file.sha256 for file in info.files] == [sha256(path).hex() for path in files]
    assert info.artifact_sha256 == hashlib.sha256(b"".join(map(sha256, files))).hexdigest()


def test_remembered_digest_of_a_changed_file(build_toy: Callable[[str], Path], tmp_path: Path) -> None:
    """A file that was changed in place is hashed again, even with its old size and modification time."""
    model = tmp_path / "model.gguf"
    shutil.copy(build_toy("llama-q8_0-tied"), model)
    before, times = inspect(model, cache_dir=tmp_path / "cache").artifact_sha256, model.stat()
    with model.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    os.utime(model, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = inspect(model, cache_dir=tmp_path / "cache").artifact_sha256
    assert after != before
    assert after == sha256(model).hex()


def test_artifact_changed_while_loading(build_toy: Callable[[str], Path], tmp_path: Path) -> None:
    """An artifact that changes between hashing and serving is refused: it is not what was proved."""
    model = tmp_path / "model.gguf"
    shutil.copy(build_toy("llama-q8_0-tied"), model)

    def touch(phase: str, _done: int, _total: int) -> None:
        if phase == "warm-up":
            os.utime(model, ns=(1, 1))

    with pytest.raises(ShardEngineError, match="changed while it was being read") as caught:
        Engine(model, on_progress=touch)
    assert caught.value.status == Status.IDENTITY


@pytest.mark.parametrize("kind", sorted(toy.MALFORMED))
def test_malformed_artifact(kind: str, toy_folder: Path, tmp_path: Path) -> None:
    """Each malformed file is refused with a typed, one-line error that names it, and leaves nothing."""
    path = toy.build_malformed(kind, toy_folder / "malformed")
    with pytest.raises(ShardEngineError) as caught:
        Engine(path, layers=(0, 1), cache_dir=tmp_path)
    assert caught.value.status in (Status.MALFORMED, Status.UNSUPPORTED, Status.NOT_FOUND)
    assert path.stem.split("-0000")[0] in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [entry for entry in tmp_path.rglob("*") if entry.suffix == ".gguf"] == []


def test_second_file_of_a_split_set(build_toy: Callable[[str], Path]) -> None:
    """Naming another file than the first says which one is needed."""
    second = Path(inspect(build_toy("llama-split")).files[1].path)
    with pytest.raises(ShardEngineError, match="file 2 of a set of 3 where file 1 is needed"):
        inspect(second)


def test_folder_and_missing_file(tmp_path: Path) -> None:
    """A folder and a path to nothing have errors of their own."""
    with pytest.raises(ShardEngineError, match="not a regular file"):
        inspect(tmp_path)
    with pytest.raises(ShardEngineError, match="does not exist") as caught:
        inspect(tmp_path / "nothing.gguf")
    assert caught.value.status == Status.NOT_FOUND


DAMAGE_AND_INSPECT = """
import random, sys
from pathlib import Path
from shard_engine import ShardEngineError, inspect

whole, path, dice = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2]), random.Random(7)
for number in range(300):
    damaged = bytearray(whole)
    for _ in range(dice.choice((1, 2, 8))):
        damaged[dice.randrange(4, 12_000 if number % 2 else 1_000)] = dice.randrange(256)
    path.write_bytes(damaged)
    print(number, flush=True)
    try:
        inspect(path)
    except ShardEngineError:
        pass
print("done")
"""


def test_damaged_headers(build_toy: Callable[[str], Path], tmp_path: Path) -> None:
    """Three hundred headers with random bytes changed are parsed or refused; none ends the process."""
    process = subprocess.run(
        [
            sys.executable,
            "-c",
            DAMAGE_AND_INSPECT,
            str(build_toy("llama-one-layer")),
            str(tmp_path / "x.gguf"),
        ],
        timeout=100,
        check=False,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )
    last = process.stdout.split()[-1]
    assert last == "done", f"damage {last} ended it: {process.stderr[-500:]}"
