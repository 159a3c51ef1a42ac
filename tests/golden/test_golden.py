"""The golden frames are what their generator writes, and they cover the protocol."""

from __future__ import annotations

from pathlib import Path

import golden_frames
from golden import make_golden

REQUESTS = {
    "ping",
    "health",
    "cancel",
    "shutdown",
    "inspect",
    "slice",
    "load",
    "estimate",
    "open",
    "forward",
    "trim",
    "close",
    "tokenize",
    "detokenize",
    "token_info",
    "chat_template",
}
ANSWERS = {
    "hello",
    "pong",
    "health",
    "cancelled",
    "bye",
    "inspected",
    "sliced",
    "loaded",
    "estimated",
    "opened",
    "result",
    "trimmed",
    "closed",
    "tokenized",
    "detokenized",
    "token_infos",
    "chat_template",
    "progress",
    "error",
}


def types_of(direction: str) -> set[str]:
    """The message types of the right frames in one direction."""
    types = set()
    for golden in golden_frames.load():
        if golden.direction == direction and golden.verdict == "ok":
            name = golden.message["type"]
            types.add(name.decode() if isinstance(name, bytes) else name)
    return types


def test_golden_file_is_what_its_generator_writes() -> None:
    """Nobody has edited the file by hand or forgotten to write it again."""
    written = Path(make_golden.__file__).with_name("frames.tsv").read_text(encoding="ascii")
    assert written == make_golden.render()


def test_golden_names_are_unique() -> None:
    """A name stands for one frame."""
    names = [golden.name for golden in golden_frames.load()]
    assert sorted(set(names)) == sorted(names)


def test_golden_frames_cover_every_message() -> None:
    """Each message of the document has a frame in its direction."""
    assert types_of("to_worker") == REQUESTS
    assert types_of("to_host") == ANSWERS
