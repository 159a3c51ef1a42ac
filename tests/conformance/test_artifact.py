"""Inspecting artifacts and cutting slices from them."""

from __future__ import annotations

import hashlib
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import shard_engine
from conformance.shard import OpenShard, ShardError, Subject


def test_inspect_adds_up(subject: Subject) -> None:
    """Layers, embedding and head are all the bytes there are; a tied head counts the embedding once."""
    info = subject.inspect(subject.model.path)
    assert info.n_layer == subject.model.n_layer == len(info.layer_bytes)
    assert info.supported
    assert info.cut_period == 1
    parts = sum(info.layer_bytes) + info.embedding_bytes + info.head_bytes
    assert info.tensor_bytes == parts - (info.embedding_bytes if info.tied_head else 0)
    assert all(info.layer_bytes)


def test_inspect_names_files_by_their_digest(subject: Subject) -> None:
    """Every file is listed with its size and sha256."""
    for file in subject.inspect(subject.model.path).files:
        content = Path(file.path).read_bytes()
        assert (file.bytes, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_inspect_missing_file_is_named(subject: Subject, tmp_path: Path) -> None:
    """A path that does not exist is `not_found`."""
    with pytest.raises(ShardError) as caught:
        subject.inspect(str(tmp_path / "nowhere.gguf"))
    assert caught.value.code == "not_found"


def test_slice_opens_as_the_same_shard(subject: Subject, open_shard: OpenShard, tmp_path: Path) -> None:
    """A slice names the artifact that it was cut from and computes that range's bits."""
    output = tmp_path / "slice.gguf"
    n_bytes = subject.slice(subject.model.path, (0, 3), output)
    assert output.stat().st_size == n_bytes
    assert [path.name for path in tmp_path.iterdir()] == ["slice.gguf"]
    info = subject.inspect(str(output))
    whole = subject.inspect(subject.model.path)
    assert info.artifact_sha256 == whole.artifact_sha256
    assert (info.is_slice, info.slice_start, info.slice_end) == (True, 0, 3)
    assert info.layer_bytes == (*whole.layer_bytes[:3], 0, 0, 0)
    cut = open_shard(subject, layers=(0, 3))
    sliced = open_shard(subject, model=str(output))
    assert sliced.description.artifact == cut.description.artifact
    assert sliced.description.layers == (0, 3)
    assert sliced.description.owned_bytes == cut.description.owned_bytes
    values = [
        shard.forward(shard.open_session(), 0, tokens=subject.model.prompts[0], output="hidden").values
        for shard in (cut, sliced)
    ]
    assert values[0] == values[1]


@pytest.mark.parametrize("layers", [(2, 4), (4, 6)], ids=str)
def test_slice_of_later_layers_opens(
    subject: Subject, open_shard: OpenShard, tmp_path: Path, layers: tuple[int, int]
) -> None:
    """Slices of inner and last layers open by themselves and hold just their layers."""
    output = tmp_path / "slice.gguf"
    subject.slice(subject.model.path, layers, output)
    sliced = open_shard(subject, model=str(output), layers=layers)
    assert sliced.description.layers == layers
    assert sliced.description.owned_layers == 2


def test_slice_serves_no_other_layers(subject: Subject, tmp_path: Path) -> None:
    """Layers that a slice does not hold are `range`, with what it holds."""
    output = tmp_path / "slice.gguf"
    subject.slice(subject.model.path, (2, 4), output)
    with pytest.raises(ShardError) as caught:
        subject.open(subject.options(model=str(output), layers=(0, 3))).close()
    assert caught.value.code == "range"
    assert "2:4" in caught.value.message


def test_slice_keeps_an_existing_file(subject: Subject, tmp_path: Path) -> None:
    """A file that is there is kept, unless it may be overwritten."""
    output = tmp_path / "slice.gguf"
    output.write_text("mine")
    with pytest.raises(ShardError) as caught:
        subject.slice(subject.model.path, (0, 3), output)
    assert (caught.value.code, caught.value.fields["path"]) == ("io", str(output))
    assert output.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["slice.gguf"]
    subject.slice(subject.model.path, (0, 3), output, overwrite=True)
    assert subject.inspect(str(output)).is_slice


def test_slice_into_a_folder_that_is_not_there_leaves_nothing(subject: Subject, tmp_path: Path) -> None:
    """A file that cannot be written is named, and none is left."""
    output = tmp_path / "missing" / "slice.gguf"
    with pytest.raises(ShardError) as caught:
        subject.slice(subject.model.path, (0, 3), output)
    assert caught.value.code == "io"
    assert str(output) in caught.value.message
    assert list(tmp_path.iterdir()) == []


def test_slice_range_outside_the_model_leaves_nothing(subject: Subject, tmp_path: Path) -> None:
    """A range that the model does not have is `range`."""
    with pytest.raises(ShardError) as caught:
        subject.slice(subject.model.path, (4, 9), tmp_path / "slice.gguf")
    assert caught.value.code == "range"
    assert list(tmp_path.iterdir()) == []


def test_slice_of_a_slice_is_refused(subject: Subject, tmp_path: Path) -> None:
    """A slice is cut from the whole artifact only."""
    output = tmp_path / "slice.gguf"
    subject.slice(subject.model.path, (0, 3), output)
    with pytest.raises(ShardError) as caught:
        subject.slice(str(output), (0, 2), tmp_path / "again.gguf")
    assert caught.value.code == "unsupported"


def test_slice_keeps_a_file_that_appears_meanwhile(in_process_subject: Subject, tmp_path: Path) -> None:
    """A file that another process writes under the same name while the slice is cut is kept."""
    output = tmp_path / "slice.gguf"

    def write_another(_phase: str, _done: int, _total: int) -> None:
        output.write_text("mine")

    with pytest.raises(shard_engine.ShardEngineError) as caught:
        shard_engine.slice_artifact(
            in_process_subject.model.path,
            (0, 3),
            output,
            engine=in_process_subject.engine,
            cache_dir=in_process_subject.cache_dir,
            on_progress=write_another,
        )
    assert caught.value.code == "io"
    assert output.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["slice.gguf"]


def test_slice_cancelled_leaves_nothing(in_process_subject: Subject, tmp_path: Path) -> None:
    """A slice whose progress callback returns False is `cancelled`, and no file is left."""
    with pytest.raises(shard_engine.ShardEngineError) as caught:
        shard_engine.slice_artifact(
            in_process_subject.model.path,
            (0, 3),
            tmp_path / "slice.gguf",
            engine=in_process_subject.engine,
            cache_dir=in_process_subject.cache_dir,
            on_progress=lambda phase, _done, _total: phase != "slice",
        )
    assert caught.value.code == "cancelled"
    assert list(tmp_path.iterdir()) == []


@contextmanager
def file_size_limit(n_bytes: int) -> Iterator[None]:
    """No file of this process can grow beyond `n_bytes`, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_slice_without_space_leaves_nothing(in_process_subject: Subject, tmp_path: Path) -> None:
    """A slice that cannot be written whole is `no_space`, with what it needs, and no file is left."""
    output = tmp_path / "slice.gguf"
    in_process_subject.inspect(in_process_subject.model.path)  # so that its digest is remembered
    with file_size_limit(16), pytest.raises(ShardError) as caught:
        in_process_subject.slice(in_process_subject.model.path, (0, 3), output)
    assert caught.value.code == "no_space"
    assert caught.value.fields["path"] == str(output)
    assert int(caught.value.fields["needed_bytes"]) > 16
    assert list(tmp_path.iterdir()) == []
