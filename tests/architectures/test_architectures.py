"""Every architecture of llama.cpp: cut, it computes the very bits of the unsplit model, or it is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from architectures.isolated import OtherProcess
from architectures.measure import Measurement, refuse
from architectures.table import COMMAND, PATH, Table
from tally import Tally
from toy.architectures import BROKEN, VARIANTS


@pytest.mark.parametrize("name", VARIANTS)
def test_cut_equals_unsplit_or_is_refused(
    name: str, measured: Callable[[str], Measurement], tally: Tally
) -> None:
    """Prefill, decode and several sessions in a batch have the same bits in a chain as unsplit; a model that
    cannot be cut is refused with the reason, and neither ends the process."""
    measurement = measured(name)
    tally.compared += measurement.compared
    tally.different += measurement.different
    assert measurement.different == 0
    assert bool(measurement.compared) == bool(measurement.cuts)


@pytest.mark.parametrize("name", BROKEN)
def test_broken_model_is_refused(name: str, other_process: OtherProcess, model_folder: Path) -> None:
    """A model over which llama.cpp would end its process is refused, whole and in part."""
    whole, part = other_process.call(refuse, name, model_folder)
    assert name in whole
    assert name in part


def test_table_says_what_was_measured(table: Table, write_architectures: bool) -> None:
    """The committed table holds what this run showed, line by line."""
    if write_architectures:
        table.write()
    assert table.missing_lines() == [], f"{PATH.name} is not what was measured; write it with `{COMMAND}`"


def test_most_variants_can_be_cut(table: Table) -> None:
    """A change that refuses what was exact cannot pass by rewriting the table."""
    if not table.is_complete:
        pytest.skip("only some of the variants were measured in this run")
    assert table.n_exact > 200
