"""`gguf-worker slice`: one shard as a file of its own, so that a node can hold only what it serves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf_worker
from gguf_worker.cli.progress import display
from gguf_worker.cli.text import print_json, printable, size


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceConfig:
    model: str
    layers: tuple[int, int]
    output: Path
    force: bool
    engine: str
    cache_dir: str | None
    json: bool


async def slice_model(config: SliceConfig) -> None:
    """Writes the file and prints its name and size."""
    with display([config.output.name], silent=config.json) as shown:
        written = await gguf_worker.slice_artifact(
            config.model,
            config.layers,
            config.output,
            overwrite=config.force,
            engine=config.engine,
            cache_dir=config.cache_dir,
            on_progress=lambda progress: shown.update(0, progress),
        )
    if config.json:
        print_json({"output": written.output, "bytes": written.bytes, "layers": list(config.layers)})
    else:
        start, end = config.layers
        print(f"{printable(written.output)}: layers {start}:{end}, {size(written.bytes)}")
