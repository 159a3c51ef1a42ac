"""Named limits of the pipe protocol (docs/protocol.md, sections 2 to 4)."""

from __future__ import annotations

from typing import Final

MAGIC: Final = b"GW"
HEADER_BYTES: Final = 8
PROTOCOL_MIN: Final = 1
PROTOCOL_MAX: Final = 1
FLAGS: Final = 0

DEFAULT_MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
MAX_KEYS: Final = 64
"""Keys in the outer map of a body."""
MAX_DEPTH: Final = 8
"""Levels of nesting in a body; the outer map is the first."""

MAX_LOGIT_BIAS: Final = 4096
"""Pairs in a logit bias."""
MAX_GRAMMAR_BYTES: Final = 64 * 1024
MAX_TOP_LOGPROBS: Final = 64
"""Candidates that a drawn token brings along."""

MAX_IN_FLIGHT: Final = 1024
"""Unanswered requests on this side. The worker itself queues 256 and refuses more as `busy`."""
