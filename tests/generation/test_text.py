"""Text that never breaks inside a character."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gguf_worker import Utf8Stream


@given(text=st.text(), data=st.data())
def test_utf8_stream_gives_whole_characters_however_bytes_arrive(text: str, data: st.DataObject) -> None:
    """Bytes cut anywhere come out as the same text, without a replacement character."""
    raw = text.encode()
    stream, out = Utf8Stream(), ""
    while raw:
        count = data.draw(st.integers(1, len(raw)))
        out += stream.feed(raw[:count])
        raw = raw[count:]
    assert out + stream.finish() == text


def test_utf8_stream_that_ends_inside_a_character_says_so_once() -> None:
    """An incomplete character at the end becomes one replacement character."""
    stream = Utf8Stream()
    assert stream.feed("é".encode()[:1]) == ""
    assert stream.finish() == "\ufffd"


def test_utf8_stream_with_bytes_that_are_no_text_goes_on() -> None:
    """A wrong byte is replaced, and what follows is read."""
    assert Utf8Stream().feed(b"a\xffb") == "a\ufffdb"
