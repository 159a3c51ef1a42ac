"""Artifacts: identity by content, and files that change or lie."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter

import toy
from shard_engine import Engine, Output, ShardEngineError, Status, inspect, slice_artifact
from toy.model import build_toy as build_toy_of


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


def write_odd_model(path: Path, keys: Mapping[str, str | int], *, tensor: str | None = None) -> None:
    """A toy with one more tensor, or with metadata keys replaced."""
    reader = GGUFReader(toy.build("llama-one-layer", path.parent / "toys"))
    writer = GGUFWriter(path, "llama")
    for field in reader.fields.values():
        name = field.name
        if name.startswith("GGUF.") or name == "general.architecture" or name in keys:
            continue
        writer.add_key_value(name, field.contents(), field.types[0], field.types[-1])
    for name, value in keys.items():
        if isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_uint32(name, value)
    for found in reader.tensors:
        writer.add_tensor(found.name, found.data, raw_dtype=found.tensor_type)
    if tensor is not None:
        writer.add_tensor(tensor, np.ones(256, dtype="f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_model_that_claims_countless_layers(tmp_path: Path) -> None:
    """A count of layers that no model has is refused at once, also for an architecture that is not known."""
    path = tmp_path / "odd.gguf"
    write_odd_model(path, {"llama.block_count": 0xFFFFFFFF})
    with pytest.raises(ShardEngineError, match="more layers than any model") as caught:
        inspect(path)
    assert caught.value.status == Status.MALFORMED


@pytest.mark.parametrize("name", ["blk.00.attn_norm.weight", "mystery.weight"])
def test_tensor_without_a_place_cannot_be_cut(name: str, tmp_path: Path) -> None:
    """A tensor that no rule knows is neither dropped from a shard nor put into it."""
    path = tmp_path / "odd.gguf"
    write_odd_model(path, {}, tensor=name)
    with pytest.raises(ShardEngineError, match="cannot be cut") as caught:
        slice_artifact(path, (0, 1), tmp_path / "slice.gguf")
    assert (caught.value.status, caught.value.fields["tensor"]) == (Status.UNSUPPORTED, name)


def test_alignment_that_the_library_aborts_over(tmp_path: Path, cache_dir: Path) -> None:
    """Tensors between the multiples of 32 bytes are refused before the library maps them."""
    shape = replace(toy.KINDS["llama-one-layer"], alignment=8)
    path = build_toy_of(shape, tmp_path, "aligned")
    assert not inspect(path).supported
    with pytest.raises(ShardEngineError, match="aligned to 8 bytes") as caught:
        Engine(path, cache_dir=cache_dir)
    assert caught.value.status == Status.UNSUPPORTED


def test_model_without_a_tokenizer(tmp_path: Path) -> None:
    """Token ids can be computed with, and whatever needs text is refused."""
    path = tmp_path / "odd.gguf"
    write_odd_model(path, {"tokenizer.ggml.model": "none", "llama.vocab_size": 315})
    with Engine(path) as engine:
        assert not engine.describe().has_vocabulary
        with pytest.raises(ShardEngineError) as caught:
            engine.tokenize("text")
        assert caught.value.status == Status.NOT_OWNED
        result = engine.forward(engine.session_open(), 0, tokens=[1, 2], output=Output.TOKEN)
        assert result.token is not None
        assert result.text == b""


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
