"""What a bench found: medians, ratios by round, verdicts, the table and the JSON."""

from __future__ import annotations

import json

import pytest

from kit.report import Ratio, Report, Section, Side, as_json, number, sides_of, table

OURS = Side(name="ours", values=(90.0, 50.0, 99.0))
PEER = Side(name="peer", values=(100.0, 50.0, 90.0))


def test_ratio_is_taken_round_by_round() -> None:
    """A round that was slow for both sides counts as any other."""
    ratio = Ratio(ours=OURS, peer=PEER)
    assert ratio.values == (0.9, 1.0, 1.1)
    assert ratio.median == 1.0
    assert (OURS.median, PEER.median) == (90.0, 90.0)


def test_sides_of_unequal_rounds_have_no_ratio() -> None:
    """One value per round on each side, or it is a mistake."""
    with pytest.raises(ValueError, match="shorter"):
        _ = Ratio(ours=OURS, peer=Side(name="peer", values=(1.0,))).values


@pytest.mark.parametrize(
    ("wanted", "floor", "more_is_better", "verdict"),
    [
        (None, None, True, ""),
        (1.0, None, True, "met"),
        (1.05, None, True, "short"),
        (1.05, 0.95, True, "floor"),
        (1.05, 1.01, True, "short"),
        (1.1, None, False, "met"),
        (0.9, None, False, "short"),
        (0.9, 1.0, False, "floor"),
    ],
)
def test_verdict(wanted: float | None, floor: float | None, more_is_better: bool, verdict: str) -> None:
    """Of a ratio whose median is 1."""
    ratio = Ratio(ours=OURS, peer=PEER, wanted=wanted, floor=floor, more_is_better=more_is_better)
    assert ratio.verdict == verdict


def _report(*problems: str) -> Report:
    section = Section(
        title="decode",
        unit="tokens/s",
        sides=(OURS, PEER),
        ratios=(Ratio(ours=OURS, peer=PEER, wanted=1.05, floor=0.95),),
        facts={"same tokens": True},
        notes=("a note",),
    )
    return Report(question="How fast?", sections=(section,), settings={"threads": 1}, problems=problems)


def test_table_shows_medians_ratios_facts_notes_and_problems() -> None:
    assert table(_report("other tokens")).splitlines() == [
        "decode [tokens/s]",
        "  ours          90   (from 50 to 99)",
        "  peer          90   (from 50 to 100)",
        "  ours / peer = 1.000   (from 0.900 to 1.100)   wanted >= 1.05, floor 0.95: floor",
        "  same tokens: True",
        "  note: a note",
        "PROBLEM: other tokens",
    ]


def test_json_keeps_every_value() -> None:
    """So that anybody can take other medians of them."""
    content = json.loads(json.dumps(as_json(_report())))
    (section,) = content["sections"]
    assert section["sides"][0] == {"name": "ours", "median": 90.0, "values": [90.0, 50.0, 99.0]}
    assert section["ratios"][0]["values"] == [0.9, 1.0, 1.1]
    assert (section["facts"], section["notes"]) == ({"same tokens": True}, ["a note"])
    assert (content["settings"], content["problems"]) == ({"threads": 1}, [])


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0123456, "0.01235"), (9.87654, "9.877"), (1234.5, "1234"), (12345.6, "12,346")]
)
def test_numbers_have_four_digits_that_count(value: float, shown: str) -> None:
    assert number(value) == shown


def test_sides_are_named_as_their_turns() -> None:
    assert sides_of({"one": [1.0, 2.0]}) == {"one": Side(name="one", values=(1.0, 2.0))}
