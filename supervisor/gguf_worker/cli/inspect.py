"""`gguf-worker inspect`: what a GGUF file holds. It is parsed in a worker, never in this process."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import gguf_worker
from gguf_worker.cli.progress import display
from gguf_worker.cli.text import plain_table, print_json, printable, size
from gguf_worker.protocol.messages import Inspection


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectConfig:
    model: str
    engine: str
    cache_dir: str | None
    json: bool


async def inspect(config: InspectConfig) -> None:
    """Prints what the artifact is; progress of hashing goes to stderr."""
    found = await look_at(config)
    if config.json:
        print_json(asdict(found) | {"allowed_cuts": list(found.allowed_cuts)})
    else:
        print(describe(found))


async def look_at(config: InspectConfig) -> Inspection:
    """What the artifact is, with progress on stderr unless JSON was asked for."""
    with display([Path(config.model).name], silent=config.json) as shown:
        return await gguf_worker.inspect(
            config.model,
            engine=config.engine,
            cache_dir=config.cache_dir,
            on_progress=lambda progress: shown.update(0, progress),
        )


def describe(found: Inspection) -> str:
    """The whole answer as text."""
    facts = [
        ("model", found.model_name or "(no name)"),
        ("architecture", found.architecture + (f", {found.n_expert} experts" if found.n_expert else "")),
        ("may be cut", "yes" if found.supported else f"no: {found.reason}"),
        ("allowed cuts", _cuts_text(found)),
        ("layers", str(found.n_layer) + _slice_text(found)),
        ("embedding", f"{found.n_embd} values a row, {found.n_vocab} tokens, {size(found.embedding_bytes)}"),
        ("head", f"{size(found.head_bytes)}, {'tied to the embedding' if found.tied_head else 'its own'}"),
        ("context", f"{found.n_ctx_train} positions in training"),
        ("tensors", f"{found.n_tensors}, {size(found.tensor_bytes)}, mostly {found.quantization}"),
        ("artifact", found.artifact),
    ]
    width = max(len(name) for name, _ in facts)
    parts = ["\n".join(f"{name:{width}}  {printable(value)}" for name, value in facts)]
    files = [(size(file.bytes), file.sha256, file.path) for file in found.files]
    parts.append(plain_table(("bytes", "sha256", "file"), files))
    parts.append(plain_table(("layers", "bytes each"), _layer_rows(found.layer_bytes)))
    return "\n\n".join(parts)


def _cuts_text(found: Inspection) -> str:
    cuts = found.allowed_cuts
    if not cuts:
        return "none"
    before = "any layer" if found.cut_period == 1 else f"multiples of {found.cut_period}"
    return f"before {before}, {cuts[0]} to {cuts[-1]}"


def _slice_text(found: Inspection) -> str:
    return f", of which this file holds {found.slice[0]}:{found.slice[1]}" if found.slice else ""


def _layer_rows(layer_bytes: tuple[int, ...]) -> list[tuple[str, str]]:
    """Runs of layers of the same size in one row each."""
    rows: list[tuple[str, str]] = []
    start = 0
    for layer, n_bytes in enumerate(layer_bytes):
        if layer + 1 == len(layer_bytes) or layer_bytes[layer + 1] != n_bytes:
            rows.append((f"{start}:{layer + 1}", size(n_bytes)))
            start = layer + 1
    return rows
