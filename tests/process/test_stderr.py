"""The last lines of stderr, in bounded memory."""

from __future__ import annotations

import pytest

from gguf_worker.process.stderr import MAX_LINE_BYTES, StderrRing


def test_ring_keeps_the_last_lines_and_counts_the_others() -> None:
    """However much a worker writes, only the last lines stay."""
    ring = StderrRing(max_lines=3)
    ring.feed(b"".join(b"line %d\n" % index for index in range(10)))
    assert ring.tail() == ("line 7", "line 8", "line 9")
    assert ring.dropped_lines == 7


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_ring_puts_lines_together_however_they_arrive(size: int) -> None:
    """A line may come in pieces, and the last one may lack its end."""
    text = "eins\r\nzwei ü\n\nunfinished".encode()
    ring = StderrRing(max_lines=10)
    for start in range(0, len(text), size):
        ring.feed(text[start : start + size])
    assert ring.tail() == ("eins", "zwei ü", "")
    ring.finish()
    assert ring.tail()[-1] == "unfinished"


def test_ring_cuts_a_line_without_an_end() -> None:
    """A worker that never ends its line costs no more than one line."""
    ring = StderrRing(max_lines=2)
    for _ in range(100):
        ring.feed(b"x" * 1000)
    ring.feed(b"\nnext\n")
    assert ring.tail() == ("x" * MAX_LINE_BYTES, "next")


def test_ring_offers_each_line_and_survives_its_listener() -> None:
    """A listener that raises is logged and loses nothing."""
    heard = []

    def listen(line: str) -> None:
        heard.append(line)
        raise ValueError(line)

    ring = StderrRing(max_lines=5, on_line=listen)
    ring.feed(b"a\nb\xff\n")
    assert heard == ["a", "b\ufffd"]
    assert ring.tail() == ("a", "b\ufffd")
