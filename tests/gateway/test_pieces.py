"""From drawn tokens to text: whole characters, every token once, in order."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as some

from gguf_worker import FinishReason, Step
from gguf_worker.gateway.pieces import ChoiceText, Piece

BYTES = some.lists(some.sampled_from([*"aé☃x".encode(), 0xFF, 0x80]), max_size=30).map(bytes)
CUTS = some.lists(some.integers(0, 30), max_size=10)
STOPS = some.lists(some.sampled_from(["a", "é☃", "☃x", "aé", "\ufffd"]), max_size=2)


def steps_of(raw: bytes, cuts: list[int], reason: FinishReason) -> list[Step]:
    """Tokens whose texts are the bytes between the cuts; the last one ends the generation."""
    places = sorted({0, len(raw), *(min(cut, len(raw)) for cut in cuts)})
    texts = [raw[start:end] for start, end in pairwise(places)]
    is_eog = reason is FinishReason.STOP
    texts = [*texts, b""] if is_eog or not texts else texts
    return [
        Step(
            index=index,
            token=index,
            logprob=-1.0,
            text_bytes=text,
            end_of_generation=is_eog and index == len(texts) - 1,
            top=(),
            finish_reason=reason if index == len(texts) - 1 else None,
        )
        for index, text in enumerate(texts)
    ]


def read(steps: list[Step], stops: list[str]) -> list[Piece]:
    """The pieces until the choice has ended."""
    choice, pieces = ChoiceText(stops), []
    for step in steps:
        pieces.append(choice.feed(step))
        if choice.stopped:
            break
    return pieces


@settings(deadline=None)
@given(raw=BYTES, cuts=CUTS, reason=some.sampled_from([FinishReason.STOP, FinishReason.LENGTH]))
def test_all_text_and_every_token_comes_once(raw: bytes, cuts: list[int], reason: FinishReason) -> None:
    steps = steps_of(raw, cuts, reason)
    pieces = read(steps, [])
    assert "".join(piece.text for piece in pieces) == raw.decode("utf-8", "replace")
    assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + [str(reason)]
    told = [drawn.step for piece in pieces for drawn in piece.drawn]
    assert told == [step for step in steps if not step.end_of_generation]


@settings(deadline=None)
@given(raw=BYTES, cuts=CUTS, stops=STOPS)
def test_text_does_not_depend_on_tokens(raw: bytes, cuts: list[int], stops: list[str]) -> None:
    """One token a byte, or all bytes in a few: the same text, ended for the same reason, and no token told
    twice or of what was cut off."""
    few = read(steps_of(raw, cuts, FinishReason.LENGTH), stops)
    many = read(steps_of(raw, list(range(31)), FinishReason.LENGTH), stops)
    assert "".join(piece.text for piece in few) == "".join(piece.text for piece in many)
    assert few[-1].finish_reason == many[-1].finish_reason
    for pieces in (few, many):
        told = [drawn.step.index for piece in pieces for drawn in piece.drawn]
        assert told == list(range(len(told)))
