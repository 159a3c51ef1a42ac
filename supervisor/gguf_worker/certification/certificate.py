"""The certificate itself: what was measured, of what, with what, when. No measuring."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from gguf_worker.certification.comparison import Comparison
from gguf_worker.errors import GgufWorkerError
from gguf_worker.identity import Recipe

FORMAT = "gguf-worker certificate"
VERSION = 1


class CertificateError(GgufWorkerError):
    """Raised when a file is no certificate, or is not the one that its id was made of."""

    default_code = "certificate"


@dataclass(frozen=True, slots=True, kw_only=True)
class CutEvidence:
    """One way to cut the model, compared with the unsplit model."""

    cuts: tuple[int, ...]
    shards: tuple[str, ...]
    """sha256 of the file that each stage's library mapped, in order."""
    alone: Comparison
    """Prefill in one forward and decode, one session at a time."""
    stepwise: Comparison
    """Prompts row by row."""
    batched: Comparison
    """Decode rows of several sessions in one step."""

    @property
    def total(self) -> Comparison:
        return self.alone + self.stepwise + self.batched

    @property
    def is_exact(self) -> bool:
        return all(part.is_exact for part in (self.alone, self.stepwise, self.batched))


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Parity evidence for one recipe of one artifact, as measured on one machine."""

    artifact: str
    """sha256, docs/protocol.md section 5."""
    files: tuple[tuple[str, int, str], ...]
    """Name without folder, bytes and sha256 of each file of the artifact."""
    model: Mapping[str, Any]
    recipe: Recipe
    """As the workers attested it, with every choice that was left to the engine."""
    build: Mapping[str, Any]
    """Engine, pin, library and devices, as the worker's hello gave them."""
    machine: Mapping[str, Any]
    workload: Mapping[str, Any]
    cuts: tuple[CutEvidence, ...]
    batch_invariance: Comparison
    """Of the unsplit model: decode rows batched with other sessions against the same rows alone."""
    chunk_invariance: Comparison
    """Of the unsplit model: a prompt row by row against the same prompt in one forward."""
    date: str
    """When it was measured, ISO 8601 in UTC."""
    command: str

    @property
    def is_exact(self) -> bool:
        """Every cut equals the unsplit model in every bit."""
        return bool(self.cuts) and all(cut.is_exact for cut in self.cuts)

    @property
    def is_batch_invariant(self) -> bool:
        """A session's logits do not depend on what shares its batch."""
        return self.batch_invariance.is_exact

    @property
    def is_chunk_invariant(self) -> bool:
        """Replaying a session in one large chunk gives the bits that steps gave."""
        return self.chunk_invariance.is_exact

    @property
    def id(self) -> str:
        """sha256 of everything else in it."""
        return _digest(self._content())

    def to_map(self) -> dict[str, object]:
        """For JSON; `from_map` reads it."""
        return {"id": self.id, **self._content()}

    def _content(self) -> dict[str, object]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "exact": self.is_exact,
            "batch_invariant": self.is_batch_invariant,
            "chunk_invariant": self.is_chunk_invariant,
            "artifact": self.artifact,
            "files": [{"name": name, "bytes": size, "sha256": digest} for name, size, digest in self.files],
            "model": dict(self.model),
            "recipe": self.recipe.to_map(),
            "build": dict(self.build),
            "machine": dict(self.machine),
            "workload": dict(self.workload),
            "cuts": [_cut_to_map(cut) for cut in self.cuts],
            "batch_invariance": self.batch_invariance.to_map(),
            "chunk_invariance": self.chunk_invariance.to_map(),
            "date": self.date,
            "command": self.command,
        }

    @classmethod
    def from_map(cls, values: dict[str, Any]) -> Self:
        """Reads what `to_map` wrote. Raises CertificateError for anything else, and where the content is not
        what the id was made of."""
        if values.get("format") != FORMAT or values.get("version") != VERSION:
            raise CertificateError(
                f"not a certificate of version {VERSION}: it says format {values.get('format')!r}, version "
                f"{values.get('version')!r}; make one with `gguf-worker certify`"
            )
        try:
            certificate = cls(
                artifact=values["artifact"],
                files=tuple((file["name"], file["bytes"], file["sha256"]) for file in values["files"]),
                model=values["model"],
                recipe=Recipe.from_map(values["recipe"]),
                build=values["build"],
                machine=values["machine"],
                workload=values["workload"],
                cuts=tuple(_cut_from_map(cut) for cut in values["cuts"]),
                batch_invariance=Comparison.from_map(values["batch_invariance"]),
                chunk_invariance=Comparison.from_map(values["chunk_invariance"]),
                date=values["date"],
                command=values["command"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CertificateError(f"the certificate is damaged: {error!r}") from error
        if values != certificate.to_map():
            raise CertificateError(
                f"the certificate was changed: its content has the id {certificate.id}, and it says "
                f"{values.get('id')}",
                fields={"expected": certificate.id, "actual": str(values.get("id"))},
            )
        return certificate


def read_certificate(path: Path) -> Certificate:
    """Reads a certificate from a file. Raises OSError, and CertificateError that names the file."""
    try:
        values = json.loads(path.read_bytes())
        if not isinstance(values, dict):
            raise CertificateError("it holds no JSON object")
        return Certificate.from_map(values)
    except (ValueError, RecursionError) as error:
        raise CertificateError(f"{path} is no certificate: {error}") from error
    except CertificateError as error:
        raise CertificateError(f"{path}: {error.message}", fields=error.fields) from error


def _cut_to_map(cut: CutEvidence) -> dict[str, object]:
    return {
        "cuts": list(cut.cuts),
        "shards": list(cut.shards),
        "exact": cut.is_exact,
        "alone": cut.alone.to_map(),
        "stepwise": cut.stepwise.to_map(),
        "batched": cut.batched.to_map(),
    }


def _cut_from_map(values: dict[str, Any]) -> CutEvidence:
    return CutEvidence(
        cuts=tuple(values["cuts"]),
        shards=tuple(values["shards"]),
        alone=Comparison.from_map(values["alone"]),
        stepwise=Comparison.from_map(values["stepwise"]),
        batched=Comparison.from_map(values["batched"]),
    )


def _digest(content: dict[str, object]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
