"""Embeddings of every architecture: the very bits of stock llama.cpp's own, or a refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from architectures.embeddings import measure_embeddings
from architectures.isolated import OtherProcess
from tally import Tally
from toy.architectures import VARIANTS

ONE_OF_EACH = {variant.architecture: name for name, variant in reversed(VARIANTS.items())}

GIVES_NONE = ("deepseek4", "qwen4exp")
"""The pinned llama.cpp ends its process over them: it takes their rows for longer than they are."""


@pytest.mark.parametrize("architecture", ONE_OF_EACH)
def test_embeddings_equal_the_librarys_own(
    architecture: str, other_process: OtherProcess, model_folder: Path, tally: Tally
) -> None:
    """Whole or cut, every value has the same bits; what cannot be given is refused as `unsupported`."""
    measured = other_process.call(measure_embeddings, ONE_OF_EACH[architecture], model_folder)
    tally.compared += measured.compared
    tally.different += measured.different
    assert measured.different == 0
    expected = {"unsupported"} if architecture in GIVES_NONE else set()
    assert set(measured.refusals) == expected
