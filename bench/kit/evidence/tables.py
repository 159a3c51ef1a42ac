"""Markdown tables of what the files hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kit.report import number

Content = Mapping[str, Any]


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[int] = ()) -> list[str]:
    """Lines of one table; the columns in `right` are figures."""
    rules = ["---:" if column in right else "---" for column in range(len(head))]
    return [_row(head), "|" + "|".join(rules) + "|", *map(_row, rows)]


def _row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


# ---- benches ------------------------------------------------------------------------------------


def bench_tables(content: Content) -> list[str]:
    """Every section of one bench: sides, ratios, facts and notes."""
    lines: list[str] = []
    for section in content.get("sections", ()):
        lines += [*_section(section), ""]
    return [*lines, *(f"- **Not as it should be:** {problem}" for problem in content.get("problems", ()))]


def _section(section: Content) -> list[str]:
    sides = [(side["name"], number(side["median"]), *_range(side["values"])) for side in section["sides"]]
    ratios = [
        (f"*{ratio['ours']} / {ratio['peer']}*", f"{ratio['median']:.3f}", *_range(ratio["values"], 3))
        for ratio in section["ratios"]
    ]
    wanted = [_wanted(ratio) for ratio in section["ratios"]]
    rows: list[tuple[object, ...]] = [*sides, *ratios]
    head = [f"{section['title']} ({section['unit']})", "median", "lowest", "highest"]
    if any(wanted):
        rows = [(*row, text) for row, text in zip(rows, [""] * len(sides) + wanted, strict=True)]
        head.append("wanted")
    told = [f"- {name}: {fact(value)}" for name, value in section["facts"].items() if is_short(value)]
    notes = [f"- {note}" for note in section["notes"]]
    below = [*told, *notes]
    return [*table(head, rows, right=(1, 2, 3)), *([""] if below else []), *below]


def ratio_table(benches: Mapping[str, Content]) -> list[str]:
    """Each ratio that has a figure to reach, of all benches."""
    rows = [
        (
            name.removeprefix("bench-"),
            section["title"],
            f"{ratio['ours']} / {ratio['peer']}",
            f"{ratio['median']:.3f}",
            " to ".join(_range(ratio["values"], 3)),
            _wanted(ratio),
        )
        for name, content in benches.items()
        for section in content.get("sections", ())
        for ratio in section["ratios"]
        if ratio["wanted"] is not None
    ]
    if not rows:
        return ["No ratio was measured."]
    return table(("bench", "section", "ratio", "median", "lowest to highest", "wanted"), rows, right=(3,))


def _wanted(ratio: Content) -> str:
    if ratio["wanted"] is None:
        return ""
    sign = "≥" if ratio["more_is_better"] else "≤"
    floor = "" if ratio["floor"] is None else f" (floor {ratio['floor']:g})"
    return f"{sign} {ratio['wanted']:g}{floor}: {ratio['verdict']}"


def _range(values: Sequence[float], digits: int | None = None) -> tuple[str, str]:
    low, high = min(values), max(values)
    return (number(low), number(high)) if digits is None else (f"{low:.{digits}f}", f"{high:.{digits}f}")


def is_short(value: object) -> bool:
    """Whether it can be read in a line; what cannot is in the file."""
    return not isinstance(value, list | dict) or len(fact(value)) <= 120


def fact(value: object) -> str:
    """As a reader would write it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {fact(one)}" for name, one in value.items() if one not in ({}, []))
    if isinstance(value, list):
        return ", ".join(map(fact, value))
    return str(value)


# ---- faults and certificates --------------------------------------------------------------------


def faults_tables(files: Mapping[str, Content]) -> list[str]:
    """The kill matrix in one line, the figures, and what befell a mesh."""
    lines: list[str] = []
    if cells := files.get("faults-matrix", {}).get("cells"):
        run = [cell for cell in cells if "found" in cell]
        failed = [cell for cell in run if cell["problems"]]
        lines += [f"Kill matrix: {len(run)} cells, {len(failed)} with a problem.", ""]
    figures = files.get("faults-figures", {}).get("figures", ())
    if figures:
        rows = [(one["name"], one["promise"], fact(one["kept"]), fact(one["values"])) for one in figures]
        lines += [*table(("figure", "promise", "kept", "values"), rows), ""]
    return [*lines, *_mesh_tables(files.get("faults-mesh", {}))]


def _mesh_tables(content: Content) -> list[str]:
    lines: list[str] = []
    if cases := content.get("cases"):
        rows = [(one["name"], one["promise"], _found(one)) for one in cases]
        lines += [*table(("what befalls a mesh", "promise", "found"), rows), ""]
    if storm := content.get("storm"):
        lines += [f"- storm: {fact({name: value for name, value in storm.items() if is_short(value)})}"]
    for text in content.get("every_token", {}).get("texts", ()):
        shown = {name: text[name] for name in ("tokens", "kills", "stages_brought_back")}
        lines += [f"- {text['name']}: {fact(shown)}{_problems(text)}"]
    for one in content.get("equality", ()):
        lines += [f"- {one['name']}: {one['compared']:,} logits compared, {one['different']} different"]
    return lines


def _found(case: Content) -> str:
    found = case.get("found", "")
    return f"{found}{_problems(case)}" if found or case.get("problems") else "kept"


def _problems(of: Content) -> str:
    return "".join(f"; PROBLEM: {problem}" for problem in of.get("problems", ()))


def certificate_tables(content: Content) -> list[str]:
    """Each cut, compared with the unsplit model."""
    rows = [
        (
            ", ".join(map(str, cut["cuts"])),
            fact(cut["exact"]),
            f"{sum(cut[part]['compared'] for part in _COMPARED):,}",
            f"{sum(cut[part]['different'] for part in _COMPARED):,}",
        )
        for cut in content["cuts"]
    ]
    invariance = [
        f"- {name}: {fact(content[flag])} ({content[part]['compared']:,} logits compared, "
        f"{content[part]['different']:,} different)"
        for name, flag, part in (
            ("independent of what shares the batch", "batch_invariant", "batch_invariance"),
            ("independent of the chunks of a prompt", "chunk_invariant", "chunk_invariance"),
        )
    ]
    head = ("cut before layers", "equals the unsplit model", "logits compared", "different")
    return [*table(head, rows, right=(2, 3)), "", *invariance, f"- certificate: `{content['id']}`"]


_COMPARED = ("alone", "stepwise", "batched")
