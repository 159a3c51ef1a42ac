"""What was measured, and on what: digests of the artifact and its shards, builds, devices, machine, network.

PYTHONPATH=bench:tests python -m kit.evidence.setting MODEL --evidence FOLDER
"""

from __future__ import annotations

import argparse
import platform
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import psutil

from gguf_worker import Recipe, Supervisor
from gguf_worker.supervision.life import Life, WorkerCommand
from gguf_worker.supervision.settings import WorkerSettings
from gguf_worker.testing.report import circumstances
from kit import ours
from kit.evidence.folder import SETTING, Folder

STAGES = (1, 2, 3, 4, 5, 6)
"""Numbers of stages that the benches divide the model into."""
_CPU_FOLDER = Path("/sys/devices/system/cpu/cpu0")
NETWORK = "loopback: every process is on this machine; longer ways are delays that a proxy adds"


async def setting(model: Path) -> dict[str, Any]:
    """All of it, for JSON."""
    command = "PYTHONPATH=bench:tests python -m kit.evidence.setting MODEL"
    return {
        **await circumstances(command),
        "hardware": hardware(),
        "network": NETWORK,
        "library": await _library(),
        "peers": _peers(),
        "artifact": _artifact(model),
        "splits": [await _split(model, n_stages) for n_stages in STAGES],
    }


async def _library() -> dict[str, Any]:
    """As a worker's hello has it; of each device without the memory that happened to be free."""
    async with Life(WorkerCommand(engine="llama"), WorkerSettings()) as life:
        build = asdict(life.hello.build)
    for device in build["devices"]:
        del device["memory_free"]
    return build


def _peers() -> dict[str, Any]:
    """How the programs that we are compared with were built, and with which flags the library."""
    from kit import build

    try:
        return build.describe()
    except LookupError as error:
        return {"missing": str(error)}


async def _split(model: Path, n_stages: int) -> dict[str, Any]:
    """Digests of the files that the library maps, as the workers attest them."""
    found = []
    for spec in await ours.specs(model, n_stages, Recipe(n_threads=1)):
        async with Supervisor(spec) as worker:
            found.append(worker.identity)
    return {
        "stages": n_stages,
        "cuts": [identity.end for identity in found[:-1]],
        "artifact": found[0].artifact,
        "shards": [{"layers": f"{one.start}:{one.end}", "sha256": one.shard} for one in found],
    }


def _artifact(model: Path) -> dict[str, Any]:
    return {"file": model.name, "bytes": model.stat().st_size}


# ---- the machine --------------------------------------------------------------------------------


def hardware() -> dict[str, Any]:
    """Nothing that names the machine."""
    return {
        "processor": _processor(),
        "cores": psutil.cpu_count(logical=False),
        "threads": psutil.cpu_count(),
        "caches": _caches(),
        "memory_bytes": psutil.virtual_memory().total,
        "swap_bytes": psutil.swap_memory().total,
        "kernel": f"{platform.system()} {platform.release()}",
        "governor": _read(_CPU_FOLDER / "cpufreq/scaling_governor") or "not known: the system does not say",
        "virtual": "hypervisor" in _cpuinfo().get("flags", "").split(),
    }


def _processor() -> str:
    """Its name, and the numbers that tell one of a family from another."""
    found = _cpuinfo()
    numbers = [f"{name} {found[name]}" for name in ("cpu family", "model", "stepping") if name in found]
    return ", ".join([found.get("model name", platform.processor() or platform.machine()), *numbers])


def _cpuinfo() -> dict[str, str]:
    """Of the first processor; empty where there is no such file."""
    first = _read(Path("/proc/cpuinfo")).split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _caches() -> list[str]:
    """Of the first processor, from the nearest."""
    indexes = sorted((_CPU_FOLDER / "cache").glob("index*"))
    return [f"L{_read(index / 'level')} {_read(index / 'type')} {_read(index / 'size')}" for index in indexes]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def check(found: dict[str, Any]) -> list[str]:
    """What is not as it should be: layers that follow each other from 0 on."""
    problems = []
    for split in found["splits"]:
        ranges = [tuple(map(int, shard["layers"].split(":"))) for shard in split["shards"]]
        if ranges[0][0] != 0 or any(one[1] != next_one[0] for one, next_one in pairwise(ranges)):
            problems.append(f"{split['stages']} stages are not one model: {ranges}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m kit.evidence.setting", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("model", type=Path, help="the demo model")
    parser.add_argument("--evidence", type=Path, required=True, metavar="DIR", help=f"gets {SETTING}")
    options = parser.parse_args()
    found = anyio.run(setting, options.model)
    Folder(options.evidence).write(SETTING, found)
    for problem in (problems := check(found)):
        print(f"PROBLEM: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
