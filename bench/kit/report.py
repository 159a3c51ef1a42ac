"""What a bench found: values of each side, ratios with what they should reach, as a table and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One way to do it."""

    name: str
    values: tuple[float, ...]
    """One per round, in the section's unit."""

    @property
    def median(self) -> float:
        return statistics.median(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Two sides of the same rounds: `ours` divided by `peer`, round by round."""

    ours: Side
    peer: Side
    wanted: float | None = None
    """What the median should reach; None where the question names no figure."""
    floor: float | None = None
    """What it must reach, where that is less than `wanted`."""
    more_is_better: bool = True
    """False for times and memory: the ratio should then not be above `wanted`."""

    @property
    def values(self) -> tuple[float, ...]:
        """One per round."""
        pairs = zip(self.ours.values, self.peer.values, strict=True)
        return tuple(ours / peer for ours, peer in pairs)

    @property
    def median(self) -> float:
        """Of the rounds."""
        return statistics.median(self.values)

    @property
    def verdict(self) -> str:
        """`met`, `floor` (between the floor and what is wanted), `short`, or nothing where nothing is
        wanted."""
        if self.wanted is None:
            return ""
        if self._reaches(self.wanted):
            return "met"
        return "floor" if self.floor is not None and self._reaches(self.floor) else "short"

    def _reaches(self, wanted: float) -> bool:
        return self.median >= wanted if self.more_is_better else self.median <= wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One table of a bench: sides that were measured in turns under the same settings."""

    title: str
    unit: str
    """Of the sides' values."""
    sides: tuple[Side, ...]
    ratios: tuple[Ratio, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)
    """What else was seen: counts, hashes, whether all drew the same tokens. For JSON, and shown below."""
    notes: tuple[str, ...] = ()
    """What a reader must know to read it rightly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that one bench found."""

    question: str
    sections: tuple[Section, ...]
    settings: Mapping[str, object] = field(default_factory=dict)
    """Models with their hashes, rounds, tokens, threads."""
    problems: tuple[str, ...] = ()
    """What should not have been: other tokens, something left. Ratios that fall short are none."""


# ---- for people ---------------------------------------------------------------------------------


def table(report: Report) -> str:
    """All sections, below each other."""
    lines: list[str] = []
    for section in report.sections:
        lines += ["", f"{section.title} [{section.unit}]", *_side_lines(section), *_ratio_lines(section)]
        lines += [f"  {name}: {value}" for name, value in section.facts.items()]
        lines += [f"  note: {note}" for note in section.notes]
    lines += [f"PROBLEM: {problem}" for problem in report.problems]
    return "\n".join(lines[1:])


def _side_lines(section: Section) -> list[str]:
    width = max(len(side.name) for side in section.sides)
    return [
        f"  {side.name:{width}}  {number(side.median):>10}   "
        f"(from {number(min(side.values))} to {number(max(side.values))})"
        for side in section.sides
    ]


def _ratio_lines(section: Section) -> list[str]:
    return [f"  {_ratio_line(ratio)}" for ratio in section.ratios]


def _ratio_line(ratio: Ratio) -> str:
    low, high = min(ratio.values), max(ratio.values)
    line = f"{ratio.ours.name} / {ratio.peer.name} = {ratio.median:.3f}   (from {low:.3f} to {high:.3f})"
    if ratio.wanted is None:
        return line
    sign = ">=" if ratio.more_is_better else "<="
    floor = "" if ratio.floor is None else f", floor {ratio.floor:g}"
    return f"{line}   wanted {sign} {ratio.wanted:g}{floor}: {ratio.verdict}"


def number(value: float) -> str:
    """Four digits that count."""
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


# ---- for programs -------------------------------------------------------------------------------


def as_json(report: Report) -> dict[str, Any]:
    """Everything, raw values included."""
    return {
        "question": report.question,
        "settings": dict(report.settings),
        "sections": [_section_json(section) for section in report.sections],
        "problems": list(report.problems),
    }


def _section_json(section: Section) -> dict[str, Any]:
    return {
        "title": section.title,
        "unit": section.unit,
        "sides": [
            {"name": side.name, "median": side.median, "values": list(side.values)} for side in section.sides
        ],
        "ratios": [_ratio_json(ratio) for ratio in section.ratios],
        "facts": dict(section.facts),
        "notes": list(section.notes),
    }


def _ratio_json(ratio: Ratio) -> dict[str, Any]:
    return {
        "ours": ratio.ours.name,
        "peer": ratio.peer.name,
        "median": ratio.median,
        "values": list(ratio.values),
        "wanted": ratio.wanted,
        "floor": ratio.floor,
        "more_is_better": ratio.more_is_better,
        "verdict": ratio.verdict,
    }


def sides_of(found: Mapping[str, Sequence[float]]) -> dict[str, Side]:
    """Sides by name, from what `rounds.in_turns` gives."""
    return {name: Side(name=name, values=tuple(values)) for name, values in found.items()}
