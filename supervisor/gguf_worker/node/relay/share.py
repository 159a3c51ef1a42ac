"""How much one link may have under way, so that all links of a connection together have a bounded amount."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Share:
    """Divides a window among the links that are open. NATS drops a connection that is behind by too much,
    with all its links; what a link was given before others came is not taken back, only not given again."""

    total_bytes: int = 16 * 1024 * 1024
    most_bytes: int = 2 * 1024 * 1024
    """Of one link."""
    least_bytes: int = 32 * 1024
    """Of one link, however many there are: a decode row of any model and more."""
    links: int = 0

    @property
    def window(self) -> int:
        """Bytes for each of the links that are open now."""
        fair = self.total_bytes // max(1, self.links)
        return min(self.most_bytes, max(self.least_bytes, fair))
