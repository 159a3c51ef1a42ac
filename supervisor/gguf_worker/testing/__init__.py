"""Faults on purpose, for the tests of whoever embeds a supervisor: no test framework is needed.

`faults` builds fault plans of the fake engine; `phases` brings a supervised worker to a phase of its life and
does something to it; `matrix` runs every failure in every phase; `Baseline` checks that nothing is left
behind, `Calls` that every call is told its outcome once. `python -m gguf_worker.testing` runs it all and
prints the figures. docs/testing.md has examples.
"""

from gguf_worker.testing.baseline import Baseline, Footprint, LeftBehind
from gguf_worker.testing.calls import Call, Calls
from gguf_worker.testing.cell import Cell, CellResult, Failure, run_cell
from gguf_worker.testing.faults import FAKE_MODEL, Fault, Frame, plan
from gguf_worker.testing.matrix import kill_matrix, run_matrix
from gguf_worker.testing.phases import Observation, Phase, Rig, Scenario, rehearse

__all__ = [
    "FAKE_MODEL",
    "Baseline",
    "Call",
    "Calls",
    "Cell",
    "CellResult",
    "Failure",
    "Fault",
    "Footprint",
    "Frame",
    "LeftBehind",
    "Observation",
    "Phase",
    "Rig",
    "Scenario",
    "kill_matrix",
    "plan",
    "rehearse",
    "run_cell",
    "run_matrix",
]
