"""SmolLM2 through supervised workers has the very bits of llama.cpp in process."""

from __future__ import annotations

from pathlib import Path

import pytest

from chain import SETTINGS, check_equal, greedy, specs
from gguf_worker import Route
from reference import Greedy, Reference
from tally import Tally

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

LAYERS = 30
STEPS = 64
PROMPTS = (
    "The capital of France is",
    'def fibonacci(n):\n    """Return the n-th number of the sequence."""\n',
    "Once upon a time, in a workshop at the edge of the town, there lived an old clockmaker. " * 10,
)
CUTS = ((), (15,), (10, 20), (1, 29), (3, 7, 21))


@pytest.fixture(scope="module")
def expected(smollm2_path: Path) -> list[Greedy]:
    """What the unsplit model computes for each prompt."""
    with Reference(smollm2_path, SETTINGS) as reference:
        return [reference.greedy(reference.tokenize(prompt), STEPS) for prompt in PROMPTS]


@pytest.mark.parametrize("cuts", CUTS, ids=str)
async def test_smollm2_chain_equals_unsplit(
    cuts: tuple[int, ...],
    expected: list[Greedy],
    smollm2_path: Path,
    real_cache: Path,
    tally: Tally,
) -> None:
    """For every cut: the same 64 token ids, and the same bits of every logit at all prompt positions and all
    decode steps."""
    async with Route.start(specs(smollm2_path, LAYERS, cuts, real_cache)) as route:
        for number, run in enumerate(expected):
            actual = await greedy(route, run.prompt, STEPS)
            assert len(actual.tokens) == STEPS
            check_equal(tally, run, actual, f"SmolLM2 cut at {cuts}, prompt {number}")
