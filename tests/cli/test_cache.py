"""What `cache ls` sees and `cache prune` removes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gguf_worker.cli.cache import CacheEntry, PruneConfig, prune_cache, scan, select
from gguf_worker.cli.errors import CommandError

DAY = 86400.0
NOW = 1000 * DAY


def _entry(name: str, *, kind: str = "shard", n_bytes: int = 100, days: float = 0) -> CacheEntry:
    assert kind in ("shard", "digest", "partial")
    return CacheEntry(path=Path(name), kind=kind, bytes=n_bytes, last_used=NOW - days * DAY)  # type: ignore[arg-type]


def _config(folder: Path = Path(), **changes: object) -> PruneConfig:
    settings: dict[str, object] = {
        "folder": folder,
        "unused_days": 30.0,
        "max_bytes": None,
        "everything": False,
        "dry_run": False,
        "json": False,
    }
    return PruneConfig(**(settings | changes))  # type: ignore[arg-type]


def _names(entries: list[CacheEntry]) -> list[str]:
    return [entry.path.name for entry in entries]


def test_prune_takes_what_is_long_unused() -> None:
    """Shards and digests older than the limit go, younger ones stay."""
    entries = (_entry("old", days=31), _entry("digest", kind="digest", days=40), _entry("new", days=29))
    assert _names(select(entries, _config(), now=NOW)) == ["old", "digest"]


def test_prune_takes_partial_files_without_a_writer() -> None:
    """A partial file goes an hour after its last write, not while a writer may be at it."""
    entries = (_entry("dead", kind="partial", days=0.1), _entry("alive", kind="partial", days=0.01))
    assert _names(select(entries, _config(), now=NOW)) == ["dead"]


def test_prune_takes_the_longest_unused_until_small_enough() -> None:
    """With a size limit the longest unused shards go first, and no more than needed."""
    entries = (_entry("c", days=3), _entry("b", days=2), _entry("a", days=1))
    assert _names(select(entries, _config(max_bytes=200), now=NOW)) == ["c"]
    assert _names(select(entries, _config(max_bytes=199), now=NOW)) == ["c", "b"]
    assert select(entries, _config(max_bytes=300), now=NOW) == []


def test_prune_takes_everything_when_asked() -> None:
    """`--all` takes every file whatever its age."""
    entries = (_entry("a"), _entry("p", kind="partial"), _entry("d", kind="digest"))
    assert _names(select(entries, _config(everything=True), now=NOW)) == ["a", "p", "d"]


def test_scan_knows_the_files_of_a_cache(tmp_path: Path) -> None:
    """Shards, digests and leftovers are told apart, the longest unused first, and strangers are left out."""
    files = ["shards/a.gguf", "digests/b", "shards/c.gguf.12-0.partial", "shards/readme.txt"]
    for age, name in enumerate(files):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 5000)
        os.utime(path, (NOW - age, NOW - age))
    found = [(entry.path.name, entry.kind) for entry in scan(tmp_path)]
    assert found == [("c.gguf.12-0.partial", "partial"), ("b", "digest"), ("a.gguf", "shard")]


def test_scan_takes_the_use_that_an_engine_noted(tmp_path: Path) -> None:
    """A shard whose digest was touched later was used then, whatever its own times say."""
    shard = tmp_path / "shards" / "a.gguf"
    shard.parent.mkdir()
    for path, when in ((shard, NOW - 5), (shard.with_suffix(".sha256"), NOW - 1)):
        path.write_bytes(b"x")
        os.utime(path, (when, when))
    assert [entry.last_used for entry in scan(tmp_path)] == [NOW - 1]


def test_scan_of_a_missing_folder_is_empty(tmp_path: Path) -> None:
    """A cache that was never used is an empty one."""
    assert list(scan(tmp_path / "never")) == []


@pytest.mark.parametrize("dry_run", [True, False])
def test_prune_removes_files_unless_dry(tmp_path: Path, dry_run: bool) -> None:
    """A dry run says what would go and leaves it there."""
    shard = tmp_path / "shards" / "a.gguf"
    shard.parent.mkdir()
    shard.write_bytes(b"x")
    prune_cache(_config(tmp_path, everything=True, dry_run=dry_run))
    assert shard.exists() is dry_run


def test_prune_goes_on_past_what_it_cannot_remove(tmp_path: Path) -> None:
    """An entry that cannot be removed is named at the end, and the others are gone."""
    stuck, shard = tmp_path / "shards" / "a.gguf", tmp_path / "shards" / "b.gguf"
    stuck.mkdir(parents=True)
    shard.write_bytes(b"x")
    with pytest.raises(CommandError, match=r"1 files could not be removed; .*a\.gguf"):
        prune_cache(_config(tmp_path, everything=True))
    assert not shard.exists()
