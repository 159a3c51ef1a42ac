"""`docs/architectures.md`, which is written from what was measured and never by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from architectures.measure import Cuts, Measurement
from architectures.workload import SETTINGS, steps
from toy.architectures import VARIANTS

COMMAND = "make test PYTEST_ARGS='tests/architectures --write-architectures'"
PATH = Path(__file__).parents[2] / "docs" / "architectures.md"


@dataclass(slots=True)
class Table:
    """The measurements of a run, by variant."""

    measurements: dict[str, Measurement] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Every variant was measured in this run."""
        return self.measurements.keys() == VARIANTS.keys()

    @property
    def n_exact(self) -> int:
        """Variants that were cut and had no bit different."""
        return sum(1 for one in self.measurements.values() if one.cut_period and not one.different)

    def write(self) -> None:
        """Replaces the committed table. Raises ValueError where variants were left out of the run."""
        if not self.is_complete:
            raise ValueError("only a run of all variants can write the table")
        PATH.write_text(self._text())

    def missing_lines(self) -> list[str]:
        """Lines that the committed table lacks; after a complete run, also lines that it has too many."""
        committed = PATH.read_text().splitlines() if PATH.exists() else []
        expected = self._text().splitlines() if self.is_complete else self._rows()
        missing = [line for line in expected if line not in committed]
        return missing + [line for line in committed if self.is_complete and line not in expected]

    def _rows(self) -> list[str]:
        return [row(one) for one in self.measurements.values()]

    def _text(self) -> str:
        ordered = [self.measurements[name] for name in VARIANTS]
        return "\n".join(_page(ordered)) + "\n"


def row(measurement: Measurement) -> str:
    """A measurement as a line of one of the two tables."""
    if not measurement.cut_period:
        whole = f"{measurement.compared:,} | {measurement.different}" if measurement.cuts else "- | -"
        return f"| `{measurement.variant}` | {measurement.layers} | {whole} | {measurement.reason} |"
    cuts = "; ".join(_cut(cuts) for cuts in measurement.cuts)
    counts = f"{measurement.compared:,} | {measurement.different}"
    return (
        f"| `{measurement.variant}` | {measurement.layers} | {measurement.cut_period} | {cuts} | {counts} |"
    )


def _cut(cuts: Cuts) -> str:
    return ", ".join(str(layer) for layer in cuts)


def _page(measurements: list[Measurement]) -> Iterator[str]:
    exact = [one for one in measurements if one.cut_period]
    refused = [one for one in measurements if not one.cut_period]
    compared = sum(one.compared for one in measurements)
    different = sum(one.different for one in measurements)
    yield "# Architectures"
    yield ""
    yield "This page is written by a test run, not by hand:"
    yield ""
    yield f"    {COMMAND}"
    yield ""
    yield from _EXPLANATION.format(
        rows=sum(len(feed.tokens) for feeds in steps(SETTINGS.n_batch) for feed in feeds),
        n_ubatch=SETTINGS.n_ubatch,
    ).splitlines()
    yield ""
    yield f"- variants that can be cut: **{len(exact)}**, of {_architectures(exact)} architectures"
    yield f"- variants that cannot, and why: **{len(refused)}**, of {_architectures(refused)} architectures"
    yield f"- logits compared: **{compared:,}**, different: **{different}**"
    yield ""
    yield "## Cut and equal"
    yield ""
    yield "| variant | layers | cuts at multiples of | cut at | logits compared | different |"
    yield "|---|--:|--:|---|--:|--:|"
    yield from (row(one) for one in exact)
    yield ""
    yield "## Not cut"
    yield ""
    yield "| variant | layers | logits compared, whole | different | reason |"
    yield "|---|--:|--:|--:|---|"
    yield from (row(one) for one in refused)


_EXPLANATION = """\
Each line is a toy model with the tensors and hyper-parameters that make the variant what it is
(`tests/toy/architectures`). Stock llama.cpp runs it unsplit, with nothing of this project; then a chain of
shards does. Every logit of {rows} rows is compared bit for bit: a prefill, decode, several sessions prefilled
in one step, decoding in one step, and both mixed in one, with at most {n_ubatch} rows computed at once.
*6; 1, 7* are two chains, one of two stages and one of three.

A variant that is called like its architecture has every optional tensor that llama.cpp knows for it. The
others say what sets them apart: `tied` and `bare` lack a head of their own, biases and RoPE factors, `fused`
has one matrix for queries, keys and values, `further` has a layer that predicts the token after the next, and
a size such as `27b` has the number of layers by which llama.cpp knows that size."""


def _architectures(measurements: list[Measurement]) -> int:
    return len({one.architecture for one in measurements})
