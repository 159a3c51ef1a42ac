"""Shard files: what is written, that it is written once and whole, and that nothing is left of a failure."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import llama_cpp
import pytest

from reference import Reference, Settings
from shard_engine import Engine, Output, Recipe, ShardEngineError, Status, inspect, slice_artifact
from tally import Tally
from toy import KINDS
from toy.architectures import VARIANTS, build
from toy.model import build_toy as build_toy_of

PROMPT = [5, 17, 99, 34, 120, 7, 61, 200]
THREADS = 2
RECIPE = Recipe(n_threads=THREADS)


def shards(cache: Path) -> list[Path]:
    return sorted((cache / "shards").glob("*.gguf"))


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and ".partial" in path.name]


def run_chain(engines: list[Engine], tokens: list[int]) -> bytes:
    """All logits of a prefill through a chain."""
    rows = b""
    for engine in engines:
        first, last = engine is engines[0], engine is engines[-1]
        result = engine.forward(
            engine.session_open(),
            0,
            tokens=tokens if first else None,
            hidden=None if first else rows,
            output=Output.LOGITS_ALL if last else Output.HIDDEN,
        )
        assert result.rows is not None
        rows = result.rows.data
    return rows


@pytest.mark.parametrize("kind", ["llama-f32-untied", "llama-q8_0-tied", "llama-split", "llama-moe4"])
def test_slices_without_their_artifact(
    kind: str, build_toy: Callable[[str], Path], tmp_path: Path, tally: Tally
) -> None:
    """Exported slices give the artifact's logits bit for bit, need nothing else, and name their artifact."""
    model = build_toy(kind)
    info = inspect(model)
    cuts = [0, 1, info.n_layer - 1, info.n_layer]
    paths = [tmp_path / f"{start}.gguf" for start in cuts[:-1]]
    for path, start, end in zip(paths, cuts, cuts[1:], strict=False):
        slice_artifact(model, (start, end), path)
    engines = [Engine(path, recipe=RECIPE) for path in paths]
    try:
        assert {engine.describe().artifact_sha256 for engine in engines} == {info.artifact_sha256}
        assert engines[0].detokenize(engines[0].tokenize("hello")) == engines[-1].detokenize(
            engines[-1].tokenize("hello")
        )
        actual = run_chain(engines, PROMPT)
    finally:
        for engine in engines:
            engine.close()
    with Reference(model, Settings(threads=THREADS)) as reference:
        tally.check(reference.greedy(PROMPT, steps=1).prefill, actual, f"{kind} in slices")


@pytest.mark.parametrize("name", ["gemma", "gemma3", "glm4", "gpt2", "qwen"])
def test_slices_of_other_architectures(name: str, tmp_path: Path, tally: Tally) -> None:
    """The same where rows are scaled, go into the graph, get positions added, or the head cannot be tied."""
    model = build(VARIANTS[name], tmp_path)
    info = inspect(model)
    middle = info.cut_period * (info.n_layer // info.cut_period // 2)
    paths = [tmp_path / "first.gguf", tmp_path / "last.gguf"]
    for path, layers in zip(paths, [(0, middle), (middle, info.n_layer)], strict=True):
        slice_artifact(model, layers, path)
    engines = [Engine(path, recipe=RECIPE) for path in paths]
    try:
        actual = run_chain(engines, PROMPT)
    finally:
        for engine in engines:
            engine.close()
    with Reference(model, Settings(threads=THREADS)) as reference:
        tally.check(reference.greedy(PROMPT, steps=1).prefill, actual, f"{name} in slices")


def test_tensors_that_are_aligned_otherwise(tmp_path: Path, tally: Tally) -> None:
    """Shards of a file with an alignment of its own hold the same tensors, and the first its embedding."""
    model = build_toy_of(replace(KINDS["llama-q8_0-tied"], alignment=256), tmp_path, "aligned")
    paths = [tmp_path / "first.gguf", tmp_path / "last.gguf"]
    for path, layers in zip(paths, [(0, 3), (3, 6)], strict=True):
        slice_artifact(model, layers, path)
    engines = [Engine(path, recipe=RECIPE) for path in paths]
    try:
        actual = run_chain(engines, PROMPT)
    finally:
        for engine in engines:
            engine.close()
    with Reference(model, Settings(threads=THREADS)) as reference:
        tally.check(
            reference.greedy(PROMPT, steps=1).prefill, actual, "tensors that are aligned to 256 bytes"
        )


def test_slice_of_everything(build_toy: Callable[[str], Path], tmp_path: Path, tally: Tally) -> None:
    """A slice of all layers keeps an untied embedding and head apart and equals the artifact."""
    model, path = build_toy("llama-f32-untied"), tmp_path / "all.gguf"
    slice_artifact(model, (0, inspect(model).n_layer), path)
    with Engine(path, recipe=RECIPE) as engine:
        actual = run_chain([engine], PROMPT)
    with Reference(model, Settings(threads=THREADS)) as reference:
        tally.check(reference.greedy(PROMPT, steps=1).prefill, actual, "a slice of all layers")


def test_slice_is_a_normal_gguf(build_toy: Callable[[str], Path], tmp_path: Path) -> None:
    """Stock llama.cpp itself loads a middle slice, so that nothing in it is ours alone to read."""
    path = tmp_path / "middle.gguf"
    slice_artifact(build_toy("llama-q8_0-tied"), (2, 4), path)
    model = llama_cpp.llama_model_load_from_file(os.fsencode(path), llama_cpp.llama_model_default_params())
    assert model
    assert llama_cpp.llama_model_n_layer(model) == 2
    llama_cpp.llama_model_free(model)


def test_slice_is_deterministic(build_toy: Callable[[str], Path], tmp_path: Path) -> None:
    """The same layers of the same artifact are the same bytes, so that anyone can check a slice."""
    model, first, second = build_toy("llama-moe4-q4_k"), tmp_path / "a.gguf", tmp_path / "b.gguf"
    for path in (first, second):
        slice_artifact(model, (0, 3), path)
    assert first.read_bytes() == second.read_bytes()


def test_slice_existing_output(build_toy: Callable[[str], Path], tmp_path: Path) -> None:
    """An existing file is replaced only where that was asked for."""
    model, path = build_toy("llama-q8_0-tied"), tmp_path / "precious.gguf"
    path.write_text("precious")
    with pytest.raises(ShardEngineError, match=r"precious\.gguf exists"):
        slice_artifact(model, (0, 1), path)
    assert path.read_text() == "precious"
    slice_artifact(model, (0, 1), path, overwrite=True)
    assert inspect(path).is_slice


def test_slice_of_a_slice(build_toy: Callable[[str], Path], tmp_path: Path) -> None:
    """A slice is not cut again, and serves its own range and no other."""
    path = tmp_path / "slice.gguf"
    slice_artifact(build_toy("llama-q8_0-tied"), (1, 4), path)
    with pytest.raises(ShardEngineError, match="slice already"):
        slice_artifact(path, (1, 2), tmp_path / "again.gguf")
    with pytest.raises(ShardEngineError, match="holds layers 1:4 only") as caught:
        Engine(path, layers=(1, 2))
    assert caught.value.status == Status.RANGE


def test_cache_writes_once(build_toy: Callable[[str], Path], tmp_path: Path) -> None:
    """A second load of the same range uses the file that the first one wrote, and notes the use."""
    model = build_toy("llama-q8_0-tied")
    with Engine(model, layers=(1, 3), cache_dir=tmp_path) as engine:
        digest = engine.describe().shard_sha256
    (path,) = shards(tmp_path)
    before, record = path.stat(), path.with_suffix(".sha256")
    os.utime(record, (1, 1))
    with Engine(model, layers=(1, 3), cache_dir=tmp_path) as engine:
        assert engine.describe().shard_sha256 == digest
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )
    assert record.stat().st_mtime > 1, "the use was not noted for `cache prune`"


@pytest.mark.parametrize("damage", ["flipped", "shortened", "unrecorded"])
def test_cache_repairs(damage: str, build_toy: Callable[[str], Path], tmp_path: Path) -> None:
    """A shard file that is no longer what was written is written again, never served."""
    model = build_toy("llama-q8_0-tied")
    with Engine(model, layers=(1, 3), cache_dir=tmp_path) as engine:
        digest = engine.describe().shard_sha256
    (path,) = shards(tmp_path)
    whole = path.read_bytes()
    if damage == "flipped":
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    elif damage == "shortened":
        path.write_bytes(whole[:-4096])
    else:
        path.with_suffix(".sha256").unlink()
    with Engine(model, layers=(1, 3), cache_dir=tmp_path) as engine:
        assert engine.describe().shard_sha256 == digest
    assert path.read_bytes() == whole


def test_cache_changed_while_loading(build_toy: Callable[[str], Path], tmp_path: Path) -> None:
    """A shard file that changes between its digest and the end of the load is not served."""

    def touch(phase: str, _done: int, _total: int) -> None:
        if phase == "warm-up":
            os.utime(shards(tmp_path)[0], ns=(1, 1))

    with pytest.raises(ShardEngineError, match="changed while it was being loaded") as caught:
        Engine(build_toy("llama-q8_0-tied"), layers=(1, 3), cache_dir=tmp_path, on_progress=touch)
    assert caught.value.status == Status.IDENTITY


def test_cache_two_writers(build_toy: Callable[[str], Path], tmp_path: Path) -> None:
    """Processes that need the same shard file at the same time end with one whole file between them."""
    model = build_toy("llama-f16")
    script = (
        "import sys; from shard_engine import Engine\n"
        "with Engine(sys.argv[1], layers=(1, 5), cache_dir=sys.argv[2]) as engine:\n"
        "    print(engine.describe().shard_sha256)"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(model), str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    digests = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0, 0]
    assert len(digests) == 1
    assert len(shards(tmp_path)) == 1
    assert leftovers(tmp_path) == []


WRITE_AND_DIE = """
import os, sys
from shard_engine import slice_artifact

def on_progress(phase, done, total):
    if phase == "slice" and done * 2 > total:
        os.kill(os.getpid(), 9)

slice_artifact(sys.argv[1], (0, 5), sys.argv[2], on_progress=on_progress)
"""


def test_slice_killed_halfway(build_toy: Callable[[str], Path], tmp_path: Path) -> None:
    """A writer that is killed in the middle leaves neither the file nor a part of it."""
    output = tmp_path / "slice.gguf"
    process = subprocess.run(
        [sys.executable, "-c", WRITE_AND_DIE, str(build_toy("llama-f16")), str(output)],
        timeout=60,
        check=False,
    )
    assert process.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def test_slice_disk_full(build_toy: Callable[[str], Path], tmp_path: Path) -> None:
    """A write that the system refuses for want of room is typed, names both figures and leaves no file."""
    output = tmp_path / "slice.gguf"
    script = (
        "import sys\nfrom shard_engine import ShardEngineError, slice_artifact\n"
        "try: slice_artifact(sys.argv[1], (0, 5), sys.argv[2])\n"
        "except ShardEngineError as e: print(e.status.code, sorted(e.fields), e, sep='\\n')"
    )
    process = subprocess.run(
        [sys.executable, "-c", script, str(build_toy("llama-f16")), str(output)],
        timeout=60,
        check=True,
        capture_output=True,
        text=True,
        preexec_fn=limit_file_size,
    )
    code, fields, message = process.stdout.splitlines()
    assert code == "no_space"
    assert fields == "['free_bytes', 'needed_bytes', 'path']"
    assert str(output) in message
    assert "free some space" in message
    assert list(tmp_path.iterdir()) == []


def test_cancelled_slice(build_toy: Callable[[str], Path], tmp_path: Path) -> None:
    """A progress callback that returns False ends the writing and leaves nothing."""
    with pytest.raises(ShardEngineError) as caught:
        slice_artifact(
            build_toy("llama-f16"),
            (0, 5),
            tmp_path / "slice.gguf",
            on_progress=lambda phase, done, total: phase != "slice" or done * 2 < total,
        )
    assert caught.value.status == Status.CANCELLED
    assert list(tmp_path.iterdir()) == []


def test_pin_other_library(tmp_path: Path) -> None:
    """An engine whose llama.cpp is another commit refuses to open and names both commits."""
    source, library = tmp_path / "other.c", tmp_path / "other.so"
    source.write_text(
        'const char *ggml_commit(void); const char *ggml_commit(void) { return "deadbeef0"; }\n'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True, timeout=60)
    script = (
        "from shard_engine import ShardEngineError, build\n"
        "try: build('llama')\nexcept ShardEngineError as e: print(e.status.code, e.fields['expected'], "
        "e.fields['actual'], sep='\\n')"
    )
    preload = f"{os.environ.get('LD_PRELOAD', '')}:{library}".lstrip(":")
    process = subprocess.run(
        [sys.executable, "-c", script],
        timeout=60,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "LD_PRELOAD": preload},
    )
    code, expected, actual = process.stdout.split()
    assert (code, actual) == ("identity", "deadbeef0")
    assert len(expected) == 40


def test_library_is_what_llama_cpp_python_loads() -> None:
    """The commit that the engine reports is that of the package's own library."""
    from shard_engine import build

    folder = Path(llama_cpp.__file__).parent / "lib"
    base = ctypes.CDLL(str(next(folder.glob("libggml-base.*"))))
    base.ggml_commit.restype = ctypes.c_char_p
    assert build("llama").library_commit == base.ggml_commit().decode()


def test_slice_onto_its_own_source(build_toy: Callable[[str], Path], tmp_path: Path) -> None:
    """The model itself is never the output, under whatever name and whatever was asked."""
    model, link = tmp_path / "model.gguf", tmp_path / "link.gguf"
    model.write_bytes(build_toy("llama-q8_0-tied").read_bytes())
    link.symlink_to(model)
    before = model.read_bytes()
    with pytest.raises(ShardEngineError, match="file of the artifact itself"):
        slice_artifact(model, (0, 1), link, overwrite=True)
    assert model.read_bytes() == before


@pytest.mark.parametrize("how", ["slice", "cache"])
def test_source_changed_while_it_is_copied(
    how: str, build_toy: Callable[[str], Path], tmp_path: Path
) -> None:
    """Bytes of another state of the model than the digest speaks of are neither exported nor cached."""
    model, output, cache = tmp_path / "model.gguf", tmp_path / "out.gguf", tmp_path / "cache"
    model.write_bytes(build_toy("llama-q8_0-tied").read_bytes())

    def touch(phase: str, _done: int, _total: int) -> None:
        if phase == "slice":
            os.utime(model, ns=(1, 1))

    def copy() -> object:
        if how == "slice":
            return slice_artifact(model, (0, 1), output, on_progress=touch)
        return Engine(model, layers=(0, 1), cache_dir=cache, on_progress=touch)

    with pytest.raises(ShardEngineError, match="changed while it was being read") as caught:
        copy()
    assert caught.value.status == Status.IDENTITY
    assert not output.exists()
    assert shards(cache) == []


def test_cancel_while_a_cached_shard_is_checked(build_toy: Callable[[str], Path], tmp_path: Path) -> None:
    """A cancel during the check of an intact shard file cancels, and the file is not written again."""
    model = build_toy("llama-q8_0-tied")
    Engine(model, layers=(1, 3), cache_dir=tmp_path).close()
    (path,) = shards(tmp_path)
    for digest in (tmp_path / "digests").iterdir():
        digest.unlink()
    before = path.stat().st_ino
    with pytest.raises(ShardEngineError) as caught:
        Engine(
            model,
            layers=(1, 3),
            cache_dir=tmp_path,
            on_progress=lambda _phase, _done, total: total != path.stat().st_size,
        )
    assert caught.value.status == Status.CANCELLED
    assert path.stat().st_ino == before
