"""The kill matrix, each cell once; and that a cell which is not as it must be is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gguf_worker import ExitCause
from gguf_worker.testing import Cell, Failure, Phase, kill_matrix, run_cell
from gguf_worker.testing.cell import Ends, LivesOn, NoCell
from gguf_worker.testing.matrix import BY_LADDER
from gguf_worker.testing.memory import CAN_LIMIT_OTHERS

pytestmark = pytest.mark.anyio

CELLS = kill_matrix()


@pytest.mark.parametrize(("failure", "phase"), CELLS, ids=lambda name: str(name).replace(" ", "-"))
async def test_failure_in_a_phase(failure: Failure, phase: Phase) -> None:
    """Cause and status are right, every call in flight is told once, and nothing is left."""
    cell = CELLS[failure, phase]
    if isinstance(cell, NoCell):
        pytest.skip(cell.reason)
    result = await run_cell(cell)
    assert result.problems == ()
    assert result.told == result.in_flight
    assert (result.latency_s is None) == isinstance(cell.expected, LivesOn)


def test_matrix_has_every_cell_or_says_why_not() -> None:
    """Fourteen failures in seven phases; a worker has no input to lose while it introduces itself."""
    assert len(CELLS) == 14 * 7
    lacking = {where for where, cell in CELLS.items() if isinstance(cell, NoCell)}
    assert lacking - {(Failure.OUT_OF_MEMORY, phase) for phase in Phase} == {(Failure.STDIN_EOF, Phase.HELLO)}


@pytest.mark.skipif(not CAN_LIMIT_OTHERS, reason="one process cannot limit another here")
async def test_resource_limit_stands_in_for_a_memory_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a memory controller the allocations of a step are refused, and the worker lives on."""
    reason = "no memory controller in this test"
    monkeypatch.setattr("gguf_worker.testing.matrix.why_no_memory_group", lambda: reason)
    cells = kill_matrix()
    cell = cells[Failure.OUT_OF_MEMORY, Phase.COMPUTE]
    assert isinstance(cell, Cell)
    result = await run_cell(cell)
    assert (result.problems, result.found) == ((), "lives on")
    lacking = cells[Failure.OUT_OF_MEMORY, Phase.IDLE]
    assert isinstance(lacking, NoCell)
    assert reason in lacking.reason


async def test_cell_that_comes_to_no_end_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that nobody finds hanging: the matrix goes on to the next cell."""
    cell = CELLS[Failure.SIGSTOP, Phase.IDLE]
    assert isinstance(cell, Cell)
    monkeypatch.setattr("gguf_worker.testing.phases.DEADLINE_S", 0.5)
    monkeypatch.setattr("gguf_worker.testing.cell.DEADLINE_S", 0.5)
    unwatched = replace(cell.scenario, settings=BY_LADDER)
    result = await run_cell(replace(cell, scenario=unwatched))
    assert (result.problems, result.found) == (("it did not come to an end within 0.5 s",), "no end")


async def test_cell_that_ends_otherwise_is_a_problem() -> None:
    """The matrix cannot pass by looking away."""
    cell = CELLS[Failure.SIGKILL, Phase.COMPUTE]
    assert isinstance(cell, Cell)
    result = await run_cell(replace(cell, expected=Ends(causes=(ExitCause.HANG,), signal=9)))
    (problem,) = result.problems
    assert "expected hang SIGKILL, but worker" in problem
    assert (result.told, result.in_flight) == (3, 3)


async def test_cell_that_was_expected_to_live_is_a_problem() -> None:
    """Neither does it take a death for a worker that lives on."""
    cell = CELLS[Failure.EXIT_0, Phase.IDLE]
    assert isinstance(cell, Cell)
    result = await run_cell(replace(cell, expected=LivesOn()))
    (problem,) = result.problems
    assert "expected clean status 0, but worker" in problem
    assert result.found == "exit_code 0"
