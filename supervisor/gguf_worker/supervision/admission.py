"""How much memory a worker may take here: what the machine has left, and what its control groups allow.

The parsers are pure. The reader follows docs.kernel.org/admin-guide/cgroup-v2 and cgroup-v1/memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

from gguf_worker._units import size
from gguf_worker.errors import RequestError
from gguf_worker.protocol.messages import Load
from gguf_worker.supervision.spec import ShardSpec

ROOT = Path("/")

REMEDY = (
    "give a smaller --ctx-size, a quantised KV cache (--cache-type-k q8_0 --cache-type-v q8_0), more shards "
    "or --no-memory-check"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Available:
    """Bytes that may be taken, and what limits them to that."""

    n_bytes: int
    limit: str
    """Such as `the machine` or `memory.max of the control group /user.slice`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """Where the memory controller of a process is mounted, and which group the process is in."""

    version: int
    """1 or 2."""
    mount_point: PurePosixPath
    group: PurePosixPath
    """Relative to the mount point; `.` is the mounted group itself."""

    def groups(self) -> Iterator[PurePosixPath]:
        """The process's group and all above it that can be seen from here."""
        yield self.group
        if self.group.parts:
            yield from self.group.parents


# ---- for the supervision ------------------------------------------------------------------------


def load_request(spec: ShardSpec) -> Load:
    """The request that loads a shard here; the worker refuses it, before it takes any memory, where it would
    not fit."""
    if not compares_memory(spec):
        return spec.load_request()
    # 0 would be no check.
    return spec.load_request(memory_available=max(1, available_memory().n_bytes))


def compares_memory(spec: ShardSpec) -> bool:
    """Whether what a shard needs is compared with what is here. Not where the specification forbids it, nor
    where it offloads layers: their memory is the devices'."""
    return spec.check_memory and spec.recipe.n_gpu_layers == 0


def explain(refusal: RequestError) -> RequestError:
    """A refusal for want of memory, told in figures that people read and with the remedy; any other as it
    is."""
    needed, available = (refusal.fields.get(name, "") for name in ("needed_bytes", "available_bytes"))
    if refusal.code != "memory" or not (needed.isdigit() and available.isdigit()):
        return refusal
    message = f"the shard needs {size(int(needed))}{_parts(refusal)} and {size(int(available))} are available"
    limit = available_memory().limit
    return RequestError(
        f"{message} (as {limit} has it); {REMEDY}",
        code=refusal.code,
        retryable=refusal.retryable,
        fields={**refusal.fields, "limit": limit},
    )


def _parts(refusal: RequestError) -> str:
    names = {"weights": "weights_bytes", "KV": "kv_bytes", "compute": "compute_bytes"}
    found = [
        f"{name} {size(int(refusal.fields[field]))}"
        for name, field in names.items()
        if refusal.fields.get(field, "").isdigit()
    ]
    return f" ({', '.join(found)})" if found else ""


# ---- the reader ---------------------------------------------------------------------------------


def available_memory(root: Path = ROOT) -> Available:
    """The least of what the machine and each control group above this process have left.

    `root` is where `/proc` and `/sys` are looked for. Where there is no `/proc/meminfo` (macOS), psutil says
    what the machine has.
    """
    found = [_machine(root), *_control_groups(root)]
    return min(found, key=lambda available: available.n_bytes)


def _machine(root: Path) -> Available:
    n_bytes = parse_meminfo(_read(root / "proc/meminfo"))
    if n_bytes is None:
        n_bytes = psutil.virtual_memory().available
    return Available(n_bytes=n_bytes, limit="the machine")


def _control_groups(root: Path) -> Iterator[Available]:
    """What each group with a limit has left. A file that is not there sets no limit."""
    membership, mounts = _read(root / "proc/self/cgroup"), _read(root / "proc/self/mountinfo")
    for hierarchy in parse_hierarchies(membership, mounts):
        top = root / hierarchy.mount_point.relative_to("/")
        for group in hierarchy.groups():
            yield from _left_in(top / group, hierarchy.version, PurePosixPath("/") / group)


def _left_in(folder: Path, version: int, group: PurePosixPath) -> Iterator[Available]:
    names = _FILES[version]
    used = parse_limit(_read(folder / names.used))
    cached = parse_statistic(_read(folder / "memory.stat"), names.cached)
    for name in names.limits:
        limit = parse_limit(_read(folder / name))
        if limit is not None and used is not None:
            left = max(0, limit - max(0, used - cached))
            yield Available(n_bytes=left, limit=f"{name} of the control group {group}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    limits: tuple[str, ...]
    used: str
    cached: str
    """In memory.stat: pages of files that the kernel drops before it lets a limit be met."""


_FILES = {
    1: _Files(limits=("memory.limit_in_bytes",), used="memory.usage_in_bytes", cached="total_inactive_file"),
    2: _Files(limits=("memory.max", "memory.high"), used="memory.current", cached="inactive_file"),
}


def _read(path: Path) -> str:
    """The text of a file; empty where it cannot be read."""
    try:
        return path.read_text(errors="surrogateescape")
    except OSError:
        return ""


# ---- the parsers --------------------------------------------------------------------------------

_NO_LIMIT_V1 = 1 << 62
"""Version 1 says the largest multiple of a page that fits in 63 bits where there is no limit."""

_MEMINFO = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)


def parse_meminfo(text: str) -> int | None:
    """Bytes of MemAvailable in /proc/meminfo; None where it does not say."""
    found = _MEMINFO.search(text)
    return int(found.group(1)) * 1024 if found else None


def parse_limit(text: str) -> int | None:
    """The bytes in a file that holds one number; None for `max`, for no limit, and for anything else."""
    word = text.strip()
    if not (word.isascii() and word.isdigit()):
        return None
    return int(word) if int(word) < _NO_LIMIT_V1 else None


def parse_statistic(text: str, name: str) -> int:
    """One value of memory.stat; 0 where it is not there."""
    found = re.search(rf"^{name} (\d+)$", text, re.MULTILINE)
    return int(found.group(1)) if found else 0


def parse_hierarchies(membership: str, mounts: str) -> list[Hierarchy]:
    """The mounted hierarchies that may limit the memory of a process: of its /proc/self/cgroup and
    /proc/self/mountinfo."""
    groups = _memory_groups(membership)
    found = []
    for line in mounts.splitlines():
        mount = _cgroup_mount(line)
        if mount is not None and mount[0] in groups:
            version, mounted, mount_point = mount
            group = _below(groups[version], mounted)
            found.append(Hierarchy(version=version, mount_point=mount_point, group=group))
    return found


def _memory_groups(membership: str) -> dict[int, PurePosixPath]:
    """The group of a process by the version of its hierarchy: `0::/path` is 2, `n:...,memory,...:/path` 1."""
    groups = {}
    for line in membership.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            groups[2] = PurePosixPath(path)
        elif "memory" in controllers.split(","):
            groups[1] = PurePosixPath(path)
    return groups


def _cgroup_mount(line: str) -> tuple[int, PurePosixPath, PurePosixPath] | None:
    """Version, the group that is mounted, and where; None for a mount that has no memory controller."""
    mount, _, source = line.partition(" - ")
    words, kind = mount.split(" "), source.split(" ")
    if len(words) < 5 or len(kind) < 3:
        return None
    version = {"cgroup2": 2, "cgroup": 1}.get(kind[0])
    if version is None or (version == 1 and "memory" not in kind[2].split(",")):
        return None
    return version, PurePosixPath(_unescape(words[3])), PurePosixPath(_unescape(words[4]))


def _unescape(word: str) -> str:
    r"""A blank in a path is written as \040, and other such characters likewise."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), word)


def _below(group: PurePosixPath, mounted: PurePosixPath) -> PurePosixPath:
    """The group relative to the one that is mounted. Where only a part of the hierarchy is mounted that does
    not hold the group (a container sees its own namespace as `/`), the mounted one stands for it."""
    if ".." in group.parts or not group.is_relative_to(mounted):
        return PurePosixPath()
    return group.relative_to(mounted)
