"""`gguf-worker version`: what is installed, asked of the worker itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import gguf_worker
from gguf_worker.cli.text import print_json, size
from gguf_worker.protocol.messages import Hello
from gguf_worker.supervision.life import Life, WorkerCommand
from gguf_worker.supervision.settings import WorkerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionConfig:
    engine: str
    json: bool


async def ask_worker(engine: str) -> Hello:
    """Starts a worker, takes its hello and stops it. Raises StartupError, also for a library that is not the
    pinned one; both commits are named then."""
    async with Life(WorkerCommand(engine=engine), WorkerSettings()) as life:
        return life.hello


async def show_version(config: VersionConfig) -> None:
    """Prints versions, pin and devices."""
    hello = await ask_worker(config.engine)
    if config.json:
        print_json(to_json(hello))
    else:
        print(describe(hello))


def to_json(hello: Hello) -> dict[str, object]:
    build = hello.build
    return {
        "gguf_worker": gguf_worker.__version__,
        "worker": hello.worker_version,
        "protocol": [hello.protocol_min, hello.protocol_max],
        "engines": list(hello.engines),
        "engine": build.engine,
        "pinned_package": build.pinned_package,
        "pinned_commit": build.pinned_commit,
        "library_commit": build.library_commit,
        "library_version": build.library_version,
        "features": build.features,
        "devices": [asdict(device) for device in build.devices],
    }


def describe(hello: Hello) -> str:
    build = hello.build
    lines = [
        f"gguf-worker  {gguf_worker.__version__}",
        f"worker       {hello.worker_version}, engines {', '.join(hello.engines)}",
        f"protocol     {hello.protocol_min} to {hello.protocol_max}",
    ]
    if build.pinned_package:
        lines.append(f"llama.cpp    {build.library_commit} (version {build.library_version})")
        lines.append(f"pinned to    {build.pinned_commit}, from llama-cpp-python {build.pinned_package}")
    lines += [
        f"device       {device.name}: {device.description}, {size(device.memory_total)}"
        for device in build.devices
    ]
    return "\n".join(lines)
