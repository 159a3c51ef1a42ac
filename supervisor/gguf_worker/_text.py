"""Text from elsewhere, made harmless."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with every character that a terminal might act upon, or that is none, as an escape: what files
    and their names hold must not steer the terminal."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
