"""SmolLM2 in workers that are killed, and on a machine that is starved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gguf_worker.testing.figures.engine import killed_engine
from gguf_worker.testing.figures.starvation import starved_machine
from gguf_worker.testing.report import figure_line

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]

STARVED_S = 20.0


async def test_smollm2_killed_in_mid_decode_and_in_mid_load_comes_back_as_the_same(
    smollm2_path: Path, tmp_path: Path, note: Callable[[str], None]
) -> None:
    """The same identity in every field, and from the same prompt the same tokens and the same bits."""
    figure = await killed_engine(smollm2_path, tmp_path)
    note(figure_line(figure))
    assert figure.problems == ()


async def test_smollm2_on_a_starved_machine_is_not_killed(
    smollm2_path: Path, note: Callable[[str], None]
) -> None:
    """More busy processes than processors; `make faults` does it for five minutes."""
    figure = await starved_machine(smollm2_path, STARVED_S)
    note(figure_line(figure))
    assert figure.problems == ()
