"""What the machine and its control groups leave for a worker."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import psutil
import pytest

from fakes import SETTINGS, spec
from gguf_worker import Recipe, Supervisor, estimate
from gguf_worker._units import size
from gguf_worker.errors import LoadRejected, RequestError
from gguf_worker.supervision import admission
from gguf_worker.supervision.admission import (
    Available,
    available_memory,
    explain,
    load_request,
    parse_hierarchies,
    parse_limit,
    parse_meminfo,
    parse_statistic,
)

GIB = 1 << 30
MEMINFO = f"MemTotal: {32 * 1024 * 1024} kB\nMemFree: 1 kB\nMemAvailable:    {16 * 1024 * 1024} kB\n"
MOUNT_2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
MOUNT_1 = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder in place of `/`: a machine with 16 GiB available and no control group."""
    write(tmp_path, "proc/meminfo", MEMINFO)
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_group(root: Path, path: str, **files: object) -> None:
    """A group of version 2, whose files are given with `_` in place of the dot."""
    for name, value in files.items():
        write(root, f"sys/fs/cgroup{path}/{name.replace('_', '.', 1)}", f"{value}\n")


def in_group(root: Path, group: str, mount: str = MOUNT_2) -> None:
    write(root, "proc/self/cgroup", f"0::{group}\n" if mount == MOUNT_2 else f"4:cpu:/x\n7:memory:{group}\n")
    write(root, "proc/self/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda rw\n" + mount)


def test_machine_without_groups_has_what_it_says(root: Path) -> None:
    """MemAvailable alone counts where nothing else limits."""
    found = available_memory(root)
    assert (found.n_bytes, found.limit) == (16 * GIB, "the machine")


def test_machine_without_meminfo_is_asked_through_psutil(tmp_path: Path) -> None:
    """As on macOS, where there is no /proc."""
    found = available_memory(tmp_path)
    assert 0 < found.n_bytes <= psutil.virtual_memory().total
    assert found.limit == "the machine"


def test_this_machine_has_memory() -> None:
    """The real files are read, whatever this test runs in."""
    assert 0 < available_memory().n_bytes <= psutil.virtual_memory().total


def test_limit_of_a_group_counts_without_what_it_uses(root: Path) -> None:
    """What is left is the limit less the usage; pages of files that the kernel would drop are no usage."""
    in_group(root, "/a")
    write_group(
        root, "/a", memory_max=8 * GIB, memory_current=5 * GIB, memory_stat=f"anon 1\ninactive_file {2 * GIB}"
    )
    found = available_memory(root)
    assert (found.n_bytes, found.limit) == (5 * GIB, "memory.max of the control group /a")


def test_tightest_group_above_decides(root: Path) -> None:
    """Every group up to the root counts, and of each both limits; the tightest is named."""
    in_group(root, "/a/b/c")
    write_group(root, "/a/b/c", memory_max="max", memory_high="max", memory_current=GIB)
    write_group(root, "/a/b", memory_max=9 * GIB, memory_high=3 * GIB, memory_current=GIB)
    write_group(root, "/a", memory_max=7 * GIB, memory_current=2 * GIB)
    found = available_memory(root)
    assert (found.n_bytes, found.limit) == (2 * GIB, "memory.high of the control group /a/b")


def test_group_above_its_limit_leaves_nothing(root: Path) -> None:
    """Nothing is left where more is used than allowed, and never less than nothing."""
    in_group(root, "/a")
    write_group(root, "/a", memory_high=GIB, memory_current=2 * GIB)
    assert available_memory(root).n_bytes == 0


def test_limit_of_a_container_is_at_its_own_root(root: Path) -> None:
    """In a namespace of its own a container's group is `/`, and its limit lies in the mounted folder."""
    in_group(root, "/")
    write_group(root, "", memory_max=GIB, memory_current=0)
    found = available_memory(root)
    assert (found.n_bytes, found.limit) == (GIB, "memory.max of the control group /")


def test_version_1_is_read_by_its_own_names(root: Path) -> None:
    """The older hierarchy has other files, and says a huge number where there is no limit."""
    in_group(root, "/docker/x", MOUNT_1)
    group = "sys/fs/cgroup/memory/docker/x"
    write(root, f"{group}/memory.limit_in_bytes", f"{4 * GIB}\n")
    write(root, f"{group}/memory.usage_in_bytes", f"{2 * GIB}\n")
    write(root, f"{group}/memory.stat", f"inactive_file 5\ntotal_inactive_file {GIB}\n")
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    write(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n")
    found = available_memory(root)
    assert (found.n_bytes, found.limit) == (
        3 * GIB,
        "memory.limit_in_bytes of the control group /docker/x",
    )


@pytest.mark.parametrize(
    ("membership", "mounts", "expected"),
    [
        ("0::/a/b\n", MOUNT_2, [(2, "/sys/fs/cgroup", "a/b")]),
        (
            "5:memory:/a\n0::/\n",
            MOUNT_1 + MOUNT_2,
            [(1, "/sys/fs/cgroup/memory", "a"), (2, "/sys/fs/cgroup", ".")],
        ),
        ("5:cpu,memory:/a\n", "1 2 0:3 /a /m rw - cgroup cgroup rw,cpu,memory\n", [(1, "/m", ".")]),
        ("5:memory:/a/b\n", "1 2 0:3 /a /m rw - cgroup cgroup rw,memory\n", [(1, "/m", "b")]),
        ("5:memory:/c\n", "1 2 0:3 /a /m rw - cgroup cgroup rw,memory\n", [(1, "/m", ".")]),
        ("0::/../x\n", MOUNT_2, [(2, "/sys/fs/cgroup", ".")]),
        ("0::/a\n", r"1 2 0:3 / /with\040blank rw - cgroup2 cgroup2 rw" + "\n", [(2, "/with blank", "a")]),
        ("0::/a\n", "1 2 0:3 / /cpu rw - cgroup cgroup rw,cpu\n", []),
        ("", MOUNT_2, []),
        ("0::/a\n", "", []),
        ("nonsense\n", "nonsense\n- - -\n", []),
    ],
)
def test_hierarchies_found_among_mounts(
    membership: str, mounts: str, expected: list[tuple[int, str, str]]
) -> None:
    """The group is found below what is mounted: all of the hierarchy, a part of it, or of another one."""
    found = parse_hierarchies(membership, mounts)
    assert [(one.version, str(one.mount_point), str(one.group)) for one in found] == expected


def test_groups_go_up_to_what_is_mounted() -> None:
    """The process's own group comes first, then each above it."""
    (hierarchy,) = parse_hierarchies("0::/a/b\n", MOUNT_2)
    assert list(hierarchy.groups()) == [PurePosixPath("a/b"), PurePosixPath("a"), PurePosixPath()]


@pytest.mark.parametrize(
    ("text", "limit"),
    [("4096\n", 4096), ("max\n", None), ("", None), ("-1\n", None), ("4 4\n", None), (f"{1 << 62}\n", None)],
)
def test_limit_is_one_number(text: str, limit: int | None) -> None:
    """Anything but a number that some machine could have is no limit."""
    assert parse_limit(text) == limit


def test_values_are_found_by_their_whole_name() -> None:
    """A name that ends in the one that is looked for is another one."""
    stat = "total_inactive_file 7\ninactive_file 5\nworkingset_inactive_file 9"
    assert parse_statistic(stat, "inactive_file") == 5
    assert parse_statistic(stat, "file") == 0
    assert parse_meminfo("MemAvailable: 3 kB\n") == 3 * 1024
    assert parse_meminfo("MemFree: 3 kB\n") is None


def test_load_compares_memory_unless_told_not_to() -> None:
    """The request carries what is available; not where the check is off, or the memory is a device's."""
    assert load_request(spec()).memory_available > 0
    assert load_request(spec(check_memory=False)).memory_available == 0
    assert load_request(spec(recipe=Recipe(n_gpu_layers=-1))).memory_available == 0


def test_refusal_is_told_in_figures_with_the_remedy() -> None:
    """Both figures, their parts and what limits them are in the message; the worker's fields stay."""
    fields = {
        "needed_bytes": str(9 * GIB),
        "available_bytes": str(GIB),
        "weights_bytes": str(6 * GIB),
        "kv_bytes": str(2 * GIB),
        "compute_bytes": str(GIB),
    }
    told = explain(RequestError("no room", code="memory", retryable=True, fields=fields))
    for words in (
        "needs 9.0 GiB (weights 6.0 GiB, KV 2.0 GiB, compute 1.0 GiB)",
        "1.0 GiB are available",
        "--ctx-size",
        "--no-memory-check",
    ):
        assert words in told.message
    assert (told.code, told.retryable) == ("memory", True)
    assert fields.items() <= told.fields.items()


@pytest.mark.parametrize(
    "refusal",
    [
        RequestError("another", code="malformed"),
        RequestError("no room", code="memory", fields={"needed_bytes": "1"}),
    ],
)
def test_refusal_without_both_figures_stays_as_it_is(refusal: RequestError) -> None:
    """Only what the worker compared is explained."""
    assert explain(refusal) is refusal


@pytest.mark.anyio
async def test_shard_that_does_not_fit_is_refused_before_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error has both figures, what limits them and the remedy; without the check the shard loads."""
    tight = Available(n_bytes=10_000, limit="memory.max of the control group /small")
    monkeypatch.setattr(admission, "available_memory", lambda: tight)
    with pytest.raises(LoadRejected) as caught:
        async with Supervisor(spec(), settings=SETTINGS):
            pytest.fail("the worker must not become ready")
    assert caught.value.code == "memory"
    assert caught.value.fields["available_bytes"] == "10000"
    needed = (await estimate(spec(), settings=SETTINGS)).total_bytes
    assert caught.value.fields["needed_bytes"] == str(needed)
    for words in (size(needed), "9.8 KiB are available", tight.limit, "--ctx-size"):
        assert words in caught.value.message
    async with Supervisor(spec(check_memory=False), settings=SETTINGS) as worker:
        assert worker.memory.total_bytes > tight.n_bytes


@pytest.mark.anyio
async def test_estimate_is_what_a_load_takes() -> None:
    """What a shard would take is known without loading it, for every part of the model and every recipe."""
    for one in (spec(), spec((0, 4)), spec((4, 0), recipe=Recipe(n_ctx=512, boundary="f16"), max_sessions=2)):
        estimated = await estimate(one, settings=SETTINGS)
        async with Supervisor(one, settings=SETTINGS) as worker:
            assert worker.memory == estimated
