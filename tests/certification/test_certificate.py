"""The certificate as a file: what is written is what is read, and a changed one is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gguf_worker import Recipe
from gguf_worker.certification import (
    Certificate,
    CertificateError,
    Comparison,
    CutEvidence,
    read_certificate,
)

EXACT = Comparison(compared=1000)
INEXACT = Comparison(compared=1000, different=3, largest=0.125)


def _certificate(**changes: Any) -> Certificate:
    certificate = Certificate(
        artifact="a" * 64,
        files=(("model.gguf", 12, "b" * 64),),
        model={"architecture": "llama", "n_layer": 6},
        recipe=Recipe(n_threads=1),
        build={"engine": "llama", "devices": [{"name": "CPU"}]},
        machine={"processors": 2},
        workload={"batched_sessions": 5},
        cuts=(
            CutEvidence(cuts=(3,), shards=("c" * 64, "d" * 64), alone=EXACT, stepwise=EXACT, batched=EXACT),
        ),
        batch_invariance=EXACT,
        chunk_invariance=INEXACT,
        date="2026-01-02T03:04:05+00:00",
        command="gguf-worker certify model.gguf",
    )
    return replace(certificate, **changes)


def _write(path: Path, values: object) -> Path:
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


def test_certificate_survives_its_file(tmp_path: Path) -> None:
    """Reading gives what was written, with the same id and the same verdicts."""
    certificate = _certificate()
    found = read_certificate(_write(tmp_path / "certificate.json", certificate.to_map()))
    assert found == certificate
    assert found.id == certificate.id
    assert (found.is_exact, found.is_batch_invariant, found.is_chunk_invariant) == (True, True, False)


def test_certificate_id_depends_on_everything_in_it() -> None:
    """Any other content is another certificate."""
    certificate = _certificate()
    changes: list[dict[str, Any]] = [
        {"artifact": "e" * 64},
        {"recipe": Recipe(n_threads=2)},
        {"chunk_invariance": EXACT},
        {"command": "gguf-worker certify other.gguf"},
        {"date": "2026-01-02T03:04:06+00:00"},
    ]
    ids = {certificate.id, *(_certificate(**change).id for change in changes)}
    assert len(ids) == 1 + len(changes)


@pytest.mark.parametrize("part", ["alone", "stepwise", "batched"])
@pytest.mark.parametrize("comparison", [INEXACT, Comparison()], ids=["different", "nothing compared"])
def test_certificate_is_not_exact_unless_every_part_is(part: str, comparison: Comparison) -> None:
    """One difference anywhere, or a part that compared nothing, and the verdict is no."""
    (cut,) = _certificate().cuts
    changes: dict[str, Any] = {part: comparison}
    assert not _certificate(cuts=(cut, replace(cut, **changes))).is_exact


def test_certificate_without_cuts_is_not_exact() -> None:
    """What compared no cut proves nothing about cuts."""
    assert not _certificate(cuts=()).is_exact


def test_certificate_that_was_changed_is_refused(tmp_path: Path) -> None:
    """A figure that was edited gives another id, and the error names the file and both ids."""
    values = _certificate().to_map()
    old_id = values["id"]
    values["chunk_invariance"] = EXACT.to_map()
    path = _write(tmp_path / "edited.json", values)
    with pytest.raises(CertificateError) as caught:
        read_certificate(path)
    assert str(path) in caught.value.message
    assert caught.value.fields["actual"] == old_id
    assert caught.value.fields["expected"] != old_id


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "no certificate"),
        ("[]", "no JSON object"),
        ("[" * 100_000, "no certificate"),
        ('{"format": "something else"}', "something else"),
        ('{"format": "gguf-worker certificate", "version": 2}', "version 2"),
        ('{"format": "gguf-worker certificate", "version": 1}', "damaged"),
    ],
)
def test_file_that_is_no_certificate_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    """Whatever else a file holds is a typed error that names it."""
    path = tmp_path / "odd.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(CertificateError, match=reason) as caught:
        read_certificate(path)
    assert str(path) in caught.value.message
