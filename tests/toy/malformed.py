"""Files that must be refused, each for one reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gguf import GGUFReader

from toy.catalogue import KINDS
from toy.model import build, write_toy

_BASE = "llama-q8_0-tied"


def _not_a_gguf(folder: Path) -> Path:
    return _file(folder, "not-a-gguf.gguf", b"This is a text about something else.\n" * 64)


def _empty(folder: Path) -> Path:
    return _file(folder, "empty.gguf", b"")


def _truncated(name: str, length_of: Callable[[Path], int]) -> Callable[[Path], Path]:
    """A whole model that ends after `length_of(path)` bytes."""

    def write(folder: Path) -> Path:
        whole = build(_BASE, folder)
        return _file(folder, f"{name}.gguf", whole.read_bytes()[: length_of(whole)])

    return write


def _first_tensor_info(path: Path) -> int:
    return int(GGUFReader(path).tensors[0].field.offset)


def _data_start(path: Path) -> int:
    return int(GGUFReader(path).data_offset)


def _unsupported_architecture(folder: Path) -> Path:
    path = folder / "unsupported-architecture.gguf"
    folder.mkdir(parents=True, exist_ok=True)
    write_toy(KINDS[_BASE], path, "a toy of an unknown architecture", architecture="no-such-architecture")
    return path


def _missing_split_file(folder: Path) -> Path:
    first = build("llama-split", folder / "incomplete")
    (folder / "incomplete" / "llama-split-00002-of-00003.gguf").unlink(missing_ok=True)
    return first


def _file(folder: Path, name: str, content: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(content)
    return path


MALFORMED: dict[str, Callable[[Path], Path]] = {
    "not-a-gguf": _not_a_gguf,
    "empty": _empty,
    "truncated-magic": _truncated("truncated-magic", lambda _: 3),
    "truncated-header": _truncated("truncated-header", lambda _: 20),
    "truncated-metadata": _truncated("truncated-metadata", lambda path: _first_tensor_info(path) // 2),
    "truncated-tensor-infos": _truncated(
        "truncated-tensor-infos", lambda path: (_first_tensor_info(path) + _data_start(path)) // 2
    ),
    "truncated-data-start": _truncated("truncated-data-start", _data_start),
    "truncated-data": _truncated(
        "truncated-data", lambda path: (_data_start(path) + path.stat().st_size) // 2
    ),
    "truncated-last-byte": _truncated("truncated-last-byte", lambda path: path.stat().st_size - 1),
    "unsupported-architecture": _unsupported_architecture,
    "missing-split-file": _missing_split_file,
}


def build_malformed(kind: str, folder: Path) -> Path:
    """Writes the malformed file `kind` (a key of MALFORMED) into `folder` and returns its path."""
    return MALFORMED[kind](folder)
