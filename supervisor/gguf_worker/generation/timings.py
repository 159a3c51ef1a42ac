"""How long a generation took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Timings:
    """Seconds and tokens of a prefill and of the decode steps after it."""

    prefill_tokens: int = 0
    prefill_s: float = 0.0
    decode_tokens: int = 0
    decode_s: float = 0.0

    @property
    def prefill_tokens_per_s(self) -> float:
        """0 where nothing was prefilled."""
        return self.prefill_tokens / self.prefill_s if self.prefill_s else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """0 where nothing was decoded: the first token comes from the prefill."""
        return self.decode_tokens / self.decode_s if self.decode_s else 0.0
