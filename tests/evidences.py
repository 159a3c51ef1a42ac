"""Made-up evidence, small enough to be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kit.evidence.folder import Folder, RunRecord
from kit.report import Ratio, Report, Section, Side, as_json


def folder_in(root: Path, day: str = "2026-03-01") -> Folder:
    """An empty one."""
    return Folder(root / day)


def run_record(name: str, **changes: Any) -> RunRecord:
    """One that ended well."""
    values: dict[str, Any] = {
        "name": name,
        "command": f"python bench/{name.removeprefix('bench-')}.py MODEL",
        "status": 0,
        "seconds": 61.5,
        "date": "2026-03-01T12:00:00+00:00",
        "load_before": 0.25,
        "source": "0123456789ab",
    }
    return RunRecord(**{**values, **changes})


def bench_content(question: str = "How fast?") -> dict[str, Any]:
    """What a bench writes, of two sides with one ratio that is met and one that nobody wants."""
    ours, peer = Side(name="ours", values=(99.0, 101.0)), Side(name="a | b", values=(100.0, 100.0))
    section = Section(
        title="decode",
        unit="tokens/s",
        sides=(ours, peer),
        ratios=(Ratio(ours=ours, peer=peer, wanted=0.97, floor=0.95), Ratio(ours=peer, peer=ours)),
        facts={"same tokens": True, "hashes": ["0" * 64, "1" * 64]},
        notes=("a note",),
    )
    report = Report(question=question, sections=(section,), settings={"threads": 1})
    return {
        "date": "2026-03-01T12:00:00+00:00",
        "command": "python bench/x.py MODEL",
        "machine": {"system": "Linux", "memory_bytes": 1024},
        "versions": {"python": "3.11.0"},
        **as_json(report),
    }


def setting_content() -> dict[str, Any]:
    """Two stages of a model on a machine with a GPU."""
    return {
        "date": "2026-03-01T11:00:00+00:00",
        "command": "python -m kit.evidence.setting MODEL",
        "hardware": {"processor": "a fast one", "kernel": "Linux 6.1", "virtual": True},
        "network": "loopback",
        "library": {
            "engine": "llama",
            "devices": [
                {"name": "CPU", "description": "a fast one", "kind": "cpu"},
                {"name": "GPU0", "description": "driver 1", "kind": "gpu"},
            ],
        },
        "peers": {"commit": "abc", "flags": ["A=ON", "B=OFF"]},
        "artifact": {"file": "model.gguf", "bytes": 4096},
        "splits": [
            {
                "stages": 1,
                "cuts": [],
                "artifact": "a" * 64,
                "shards": [{"layers": "0:4", "sha256": "b" * 64}],
            },
            {
                "stages": 2,
                "cuts": [2],
                "artifact": "a" * 64,
                "shards": [{"layers": "0:2", "sha256": "c" * 64}, {"layers": "2:4", "sha256": "d" * 64}],
            },
        ],
    }
