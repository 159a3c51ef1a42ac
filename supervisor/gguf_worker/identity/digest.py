"""How an artifact is named (docs/protocol.md, section 5)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def artifact_digest(file_digests: Sequence[str]) -> str:
    """The artifact's sha256 from those of its files, in split order.

    One file is named by its own digest; a split set by the sha256 of its files' raw digests one after the
    other. Raises ValueError where a digest is not 64 hexadecimal digits or there is none.
    """
    raw = [_raw_digest(digest) for digest in file_digests]
    if not raw:
        raise ValueError("an artifact has at least one file")
    return raw[0].hex() if len(raw) == 1 else hashlib.sha256(b"".join(raw)).hexdigest()


def _raw_digest(digest: str) -> bytes:
    raw = bytes.fromhex(digest)
    if len(raw) != hashlib.sha256().digest_size or len(digest) != 2 * len(raw):
        raise ValueError(f"{digest!r} is not a sha256 of 64 hexadecimal digits")
    return raw
