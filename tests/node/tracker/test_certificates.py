"""Certificates on their way to a tracker: what is said of one, and which stages it stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from gguf_worker.certification import Certificate, read_certificate
from gguf_worker.node.tracker.certificates import certificate_for, certificate_message, why_dark, why_not
from gguf_worker.node.tracker.registration import check_certificate
from gguf_worker_v1 import common_pb2
from registered import stage

EVIDENCE = Path(__file__).parents[3] / "docs/evidence"


@pytest.fixture
def certificate() -> Certificate:
    """One that was measured."""
    return read_certificate(max(EVIDENCE.glob("*/certificate-smollm2-135m-q4_1.json")))


def _stage_of(certificate: Certificate) -> common_pb2.Stage:
    """A stage as the measured build attests it, with this certificate's recipe."""
    message = certificate_message(certificate)
    made = stage(0, 10, artifact=message.artifact, recipe=message.recipe, commit=message.library_commit)
    made.build.engine = message.engine
    return made


def test_tracker_is_told_what_was_measured(certificate: Certificate) -> None:
    message = certificate_message(certificate)
    check_certificate(message)
    assert (message.id, message.artifact) == (certificate.id, certificate.artifact)
    assert message.recipe["n_ctx"] == str(certificate.recipe.n_ctx)
    assert message.recipe["flash_attn"] == "true"
    assert message.exact == certificate.is_exact
    assert message.batch_invariant == certificate.is_batch_invariant
    assert message.chunk_invariant == certificate.is_chunk_invariant
    assert message.library_commit == certificate.build["library_commit"]


def test_certificate_stands_for_stages_that_are_what_was_measured(certificate: Certificate) -> None:
    message = certificate_message(certificate)
    assert certificate_for(_stage_of(certificate), {message.id: message}) == message


def test_certificate_stands_for_nothing_else(certificate: Certificate) -> None:
    """The reason says what the recipe is that nobody certified."""
    message = certificate_message(certificate)
    other = _stage_of(certificate)
    other.identity.recipe["n_threads"] = "7"
    assert certificate_for(other, {message.id: message}) is None
    assert "n_threads 7" in why_dark(other, {message.id: message})
    assert "recipe.n_threads: expected 1, actual 7" in why_not(other, message)
    newer = _stage_of(certificate)
    newer.build.library_commit = "fffffff"
    assert certificate_for(newer, {message.id: message}) is None
    assert "fffffff" in why_dark(newer, {message.id: message})
    assert "fffffff" in why_not(newer, message)
