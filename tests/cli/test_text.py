"""Figures and sizes as people read them."""

from __future__ import annotations

import pytest

from gguf_worker.cli.cache import parse_size
from gguf_worker.cli.errors import CommandError
from gguf_worker.cli.text import harmless, one_line, plain_table, printable, rate, size


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB"), (5 << 40, "5.0 TiB")],
)
def test_size_shown_in_binary_units(n_bytes: int, text: str) -> None:
    """Sizes are shown in the largest unit that leaves at least one."""
    assert size(n_bytes) == text


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [("0", 0), ("512", 512), ("4K", 4096), ("1.5m", 3 << 19), ("10G", 10 << 30), ("2 GiB", 2 << 30)],
)
def test_size_read_from_text(text: str, n_bytes: int) -> None:
    """A size is a number and a binary unit, with or without B."""
    assert parse_size(text) == n_bytes


@pytest.mark.parametrize("text", ["", "G", "ten", "-1", "1P", "1 2", "9" * 400, "8388608T"])
def test_size_refused_when_not_a_size(text: str) -> None:
    """Anything else, and what no disk holds, is refused with the way to write it."""
    with pytest.raises(CommandError, match="write it as 500M or 10G"):
        parse_size(text)


def test_rate_unknown_when_nothing_was_measured() -> None:
    """Without things or without time there is no rate, rather than a zero or a division."""
    assert rate(0, 1.0) is None
    assert rate(3, 0.0) is None
    assert rate(3, 2.0) == 1.5


def test_plain_table_lines_up() -> None:
    """Every line of a table has the same width, numbers to the right."""
    lines = plain_table(("layers", "pid"), [("0:10", "7"), ("10:20", "12345")]).splitlines()
    assert lines == ["layers    pid", "  0:10      7", " 10:20  12345"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Größe 模型", "Größe 模型"),
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("a\r\nb\x9bc\x7f", r"a\r\nb\x9bc\x7f"),
        ("\udcff\u202e", r"\udcff\u202e"),
    ],
)
def test_printable_escapes_what_steers_a_terminal(text: str, shown: str) -> None:
    """Control characters, line ends and surrogates are shown as escapes; letters of any script stay."""
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\n\tb Größe\xa0模型\u3000\U0001f469\u200d\U0001f4bb", None),
        ("\x1b[2J\r\x07\x9b1m\x7f\x00", r"\x1b[2J\r\x07\x9b1m\x7f\x00"),
        ("a\u202eb\u2066c", r"a\u202eb\u2066c"),
    ],
)
def test_harmless_text_keeps_what_people_read(text: str, shown: str | None) -> None:
    """Line ends, blanks and joined characters of any script stay; what steers a terminal is escaped."""
    assert harmless(text) == (text if shown is None else shown)


def test_one_line_is_printable() -> None:
    """White space becomes one blank, and what is left cannot steer the terminal."""
    assert one_line("a\n \tb\x1b]0;c\x07") == r"a b\x1b]0;c\x07"
