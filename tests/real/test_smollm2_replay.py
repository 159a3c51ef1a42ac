"""SmolLM2 in three workers that are killed while they generate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gguf_worker.testing.figures.replay import replayed_route
from gguf_worker.testing.report import figure_line

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]

EVERY = 8
"""Tokens between two kills here; `make faults` kills after each."""


async def test_smollm2_says_the_same_while_its_workers_are_killed(
    smollm2_path: Path, real_cache: Path, note: Callable[[str], None]
) -> None:
    """Greedy and seeded, with kept rows and without: the same tokens, bytes and log-probabilities."""
    figure = await replayed_route(smollm2_path, EVERY, real_cache)
    note(figure_line(figure))
    assert figure.problems == ()
