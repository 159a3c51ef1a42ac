"""`gguf-worker cache`: what the cache folder holds, and removing what is not needed.

The folder belongs to the engine: `shards/<key>.gguf` are shard files, each with its digest in `<key>.sha256`
beside it, `digests/` remembers sha256 sums of artifacts, and `*.partial` are leftovers of writers that were
killed on a file system without unnamed files. All of it can be made again. Removing a file that a worker has
mapped is safe: its pages stay until the worker ends. `locks/` is left alone, for a lock that is removed while
it is held would let in a second writer.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gguf_worker.cli.errors import EXIT_FAILED, CommandError, describe
from gguf_worker.cli.text import plain_table, print_json, printable, size

Kind = Literal["shard", "digest", "partial"]

PARTIAL_AGE_S = 3600.0
"""A partial file that nobody wrote to for so long has lost its writer."""

MOST_BYTES = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntry:
    path: Path
    kind: Kind
    bytes: int
    """Bytes on disk, which is less than the length of a file with holes."""
    last_used: float
    """Seconds since the epoch: the latest of last read (as far as the file system tells), last write and last
    use that an engine noted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneConfig:
    folder: Path
    unused_days: float
    """Shards and digests that were not used for so long go."""
    max_bytes: int | None
    """Of the rest, the shards longest unused go until all is smaller than this; None: no limit."""
    everything: bool
    dry_run: bool
    json: bool


def parse_size(text: str) -> int:
    """`"10G"`, `"10GiB"` and `"512 MiB"` in bytes, by powers of 1024. Raises CommandError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if match is None:
        raise CommandError(f"{text!r} is not a size", remedy="write it as 500M or 10G")
    n_bytes = float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " ")
    if n_bytes >= MOST_BYTES:
        raise CommandError(
            f"--max-size {match[0]} is more than any disk holds", remedy="write it as 500M or 10G"
        )
    return int(n_bytes)


def list_cache(folder: Path, *, as_json: bool) -> None:
    """Prints one line per shard file and the totals."""
    entries = tuple(scan(folder))
    if as_json:
        print_json({"folder": str(folder), "entries": [_to_json(entry) for entry in entries]})
        return
    shards = [entry for entry in entries if entry.kind != "digest"]
    if shards:
        print(plain_table(("size", "unused for", "file"), [_to_row(entry) for entry in shards]))
    total = sum(entry.bytes for entry in entries)
    n_digests = len(entries) - len(shards)
    print(f"{len(shards)} shard files and {n_digests} digests, {size(total)}, in {printable(str(folder))}")


def prune_cache(config: PruneConfig) -> None:
    """Removes what `select` names and prints what was freed. Raises CommandError when some of it stayed."""
    removed: list[CacheEntry] = []
    failures: list[str] = []
    for entry in select(tuple(scan(config.folder)), config, now=time.time()):
        try:
            if not config.dry_run:
                _remove(entry)
            removed.append(entry)
        except OSError as error:
            failures.append(describe(error) or "")
    freed = sum(entry.bytes for entry in removed)
    if config.json:
        print_json(
            {
                "folder": str(config.folder),
                "dry_run": config.dry_run,
                "removed": [_to_json(entry) for entry in removed],
                "freed_bytes": freed,
            }
        )
    else:
        verb = "would remove" if config.dry_run else "removed"
        print(f"{verb} {len(removed)} files, {size(freed)}, in {printable(str(config.folder))}")
    if failures:
        raise CommandError(
            f"{len(failures)} files could not be removed; {failures[0]}", exit_status=EXIT_FAILED
        )


def scan(folder: Path) -> Iterator[CacheEntry]:
    """Every file of the cache, the longest unused first. A folder that is not there is an empty cache."""
    found = (_entry(path, kind) for path, kind in _files(folder))
    yield from sorted((entry for entry in found if entry), key=lambda entry: (entry.last_used, entry.path))


def select(entries: tuple[CacheEntry, ...], config: PruneConfig, *, now: float) -> list[CacheEntry]:
    """The entries that `config` wants gone, given the clock. Pure."""
    if config.everything:
        return list(entries)
    kept: list[CacheEntry] = []
    removed: list[CacheEntry] = []
    for entry in entries:
        limit = PARTIAL_AGE_S if entry.kind == "partial" else config.unused_days * 86400
        (removed if now - entry.last_used > limit else kept).append(entry)
    excess = sum(entry.bytes for entry in kept) - config.max_bytes if config.max_bytes is not None else 0
    for entry in kept:
        if excess > 0 and entry.kind == "shard":
            removed.append(entry)
            excess -= entry.bytes
    return removed


def _remove(entry: CacheEntry) -> None:
    """Removes the file, and a shard's digest with it. Another prune may have been faster."""
    entry.path.unlink(missing_ok=True)
    if entry.kind == "shard":
        entry.path.with_suffix(".sha256").unlink(missing_ok=True)


def _files(folder: Path) -> Iterator[tuple[Path, Kind]]:
    for path in folder.glob("*/*"):
        if path.suffix == ".partial":
            yield path, "partial"
        elif path.parent.name == "shards" and path.suffix == ".gguf":
            yield path, "shard"
        elif path.parent.name == "digests":
            yield path, "digest"


def _entry(path: Path, kind: Kind) -> CacheEntry | None:
    try:
        status = path.stat()
    except FileNotFoundError:  # removed since it was listed
        return None
    last_used = max(status.st_atime, status.st_mtime)
    if kind == "shard":
        last_used = max(last_used, _noted_use(path))
    return CacheEntry(path=path, kind=kind, bytes=status.st_blocks * 512, last_used=last_used)


def _noted_use(shard: Path) -> float:
    """When an engine last used the shard: it touches the digest beside it. 0 where there is none."""
    try:
        return shard.with_suffix(".sha256").stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _to_json(entry: CacheEntry) -> dict[str, object]:
    return {
        "path": str(entry.path),
        "kind": entry.kind,
        "bytes": entry.bytes,
        "last_used": entry.last_used,
    }


def _to_row(entry: CacheEntry) -> tuple[str, str, str]:
    days = max(0.0, time.time() - entry.last_used) / 86400
    return size(entry.bytes), f"{days:.1f} d", entry.path.name
