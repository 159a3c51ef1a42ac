"""The command that certifies, on the real model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from commandline import CommandLine
from gguf_worker.certification import read_certificate

pytestmark = pytest.mark.timeout(900)


def test_smollm2_certificate_is_exact(
    smollm2_path: Path, real_cache: Path, tmp_path: Path, note: Callable[[str], None]
) -> None:
    """The recipe of the demo, with one thread and cells of each session's own: exit status 0, no logit
    differs, it is batch-invariant, and the file says so."""
    output = tmp_path / "certificate.json"
    words = ("--threads", "1", "--no-kv-unified", "--ctx-size", "512", "--steps", "8", "--cuts", "10,20")
    command = CommandLine(real_cache)
    result = command("certify", smollm2_path, *words, "--output", output, "--json", timeout_s=600.0)
    assert result.returncode == 0, result.stderr
    certificate = read_certificate(output)
    assert json.loads(result.stdout)["id"] == certificate.id
    assert certificate.is_exact
    assert certificate.is_batch_invariant
    total = sum(cut.total.compared for cut in certificate.cuts)
    note(
        f"certificate: {total:,} logits compared, 0 different; batch-invariant "
        f"{certificate.is_batch_invariant}, chunk-invariant {certificate.is_chunk_invariant}"
    )
